"""Damages valid files; the same seed gives the same damage."""

from __future__ import annotations

import copy
import io
import json
import random
import re
import zipfile
from typing import Any

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 10**6, 10**9, -(10**9), 2**31, 2**63, 2**64, 10**30, -(10**30), 0.5, -0.5,
    1e-300, 1e30, 1e308, float("nan"), float("inf"), float("-inf"), "", "x", "relu", "1", "\0", "\ud800", "é" * 1000,
    "../../x", [], [0], [[]], [None], ["a", 1], [10**30], [0] * 1000, {}, {"kind": "Table"}, {"kind": "Stack"},
    {"a": {"a": {}}},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in JSON data, including the root."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def value_at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def json_damaged(content: Any, draw: random.Random) -> str:
    """Return JSON text with one to three values changed, removed, swapped, nested, renamed or duplicated."""
    content = json.loads(json.dumps(content))
    if draw.random() < 0.1:
        return bytes_damaged(json.dumps(content).encode(), draw).decode("utf-8", "replace")
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        found = [path for path in places(content) if path]
        if not found:
            break
        path = draw.choice(found)
        home, key = value_at(content, path[:-1]), path[-1]
        match draw.randrange(8):
            case 0 | 1 | 2 | 3:
                home[key] = copy.deepcopy(draw.choice(VALUES))
            case 4:
                del home[key]
            case 5:
                other = draw.choice(found)
                home[key] = json.loads(json.dumps(value_at(content, other)))
            case 6:
                deep: Any = home[key]
                for _ in range(draw.choice((1, 3, 100))):
                    deep = draw.choice(([deep], {"x": deep}))
                home[key] = deep
            case 7 if isinstance(home, dict):
                home[draw.choice((f"{key}_", str(key).upper(), "kind", "type", ""))] = home.pop(key)
    text = json.dumps(content)
    if draw.random() < 0.03 and text.startswith("{") and len(text) > 2:
        name = draw.choice(list(content) or ["x"])
        text = "{" + f"{json.dumps(name)}: 0, " + text[1:]
    return text


def bytes_damaged(raw: bytes, draw: random.Random) -> bytes:
    """Cut, flip, duplicate, fill or move bytes."""
    out = bytearray(raw)
    for _ in range(draw.choice((1, 1, 2, 8))):
        place = draw.randrange(len(out) + 1)
        size = draw.choice((1, 4, 8, 64, len(out) // 3 + 1))
        match draw.randrange(7):
            case 0:
                del out[place:]
            case 1 if place < len(out):
                out[place] ^= 1 << draw.randrange(8)
            case 2:
                out[place:place] = out[place : place + size]
            case 3:
                out[place : place + size] = bytes([draw.choice((0, 255, 10, 34))]) * size
            case 4:
                out[place:place] = draw.randbytes(size)
            case 5:
                del out[place : place + size]
            case 6:
                out[:8] = draw.choice((b"\xff" * 8, b"\0" * 8, (2**40).to_bytes(8, "little")))
    return bytes(out)


def archive_damaged(raw: bytes, draw: random.Random) -> bytes:
    """Damage the zip archive itself, or one file in it with a correct checksum."""
    if draw.random() < 0.3:
        return bytes_damaged(raw, draw)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        chosen = draw.choice(old.namelist())
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, array_damaged(content, draw) if name == chosen else content)
    return out.getvalue()


def array_damaged(raw: bytes, draw: random.Random) -> bytes:
    """Damage an .npy file: change the dtype or shape in its header, without changing its length, or any byte."""
    end = raw.index(b"\n") + 1
    header = raw[:end].decode("latin-1")
    match draw.randrange(4):
        case 0:
            return bytes_damaged(raw, draw)
        case 1:
            kind = draw.choice(("|O", "|S9", "<U2", "<M8", "|b1", "<f2", "<c16", "<i8", "<u1", "|V7", "x", "<f4,<f4"))
            header = re.sub(r"'descr': '[^']*'", f"'descr': '{kind}'", header)
        case 2:
            shape = draw.choice(("()", "(0,)", "(9,)", "(10**9,)", "(-1,)", "(999999999999,)", "(3, 3)", "(9, 0)", "9"))
            header = re.sub(r"'shape': \([^)]*\)", f"'shape': {shape}", header)
        case 3:
            header = header.replace("False", draw.choice(("True", "None", "0")))
    header = header.rstrip()
    return (header + " " * (end - 1 - len(header)) + "\n").encode("latin-1") + raw[end:]


def safetensors_damaged(raw: bytes, draw: random.Random) -> bytes:
    """Damage the header's JSON or any byte, or write NaN and infinity into the data."""
    length = int.from_bytes(raw[:8], "little")
    kind = draw.randrange(4)
    if kind == 0:
        return bytes_damaged(raw, draw)
    if kind == 1 and len(raw) - 8 - length >= 8:
        place = 8 + length + draw.randrange((len(raw) - 8 - length) // 4) * 4
        return raw[:place] + draw.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\xff\xff")) + raw[place + 4 :]
    header = json_damaged(json.loads(raw[8 : 8 + length]), draw).encode("utf-8", "replace")
    return len(header).to_bytes(8, "little") + header + raw[8 + length :]
