"""What `anyformer look` looks at: a model from its folder, and a text, a picture or a recording as it reads them."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.checkpoint import load
from anyformer.generation import generate
from anyformer.inputs.image import ENDINGS
from anyformer.inputs.processor import Processor, processor
from anyformer.inputs.text import Tokenizer, belong
from anyformer.look.inside import Scene
from anyformer.model import TransformerModule, position_limit
from anyformer.weights import hub

SOUNDS = (".wav", ".flac", ".ogg", ".mp3", ".m4a", ".opus")
WRITTEN = 24  # tokens that a pair writes where nobody says what it should have written


def scene(
    source: str, given: str, *, other: str | None = None, target: str | None = None, device: Any = "cpu",
    dtype: str = "auto", offline: bool = False,
) -> Scene:  # fmt: skip
    """`given` is a text, or the file of a picture or a recording where the model reads those; `other` is one more, to
    paste from. `target` is what the decoder of a pair reads, by default what it writes itself."""
    folder = hub.resolve(source, offline=offline)
    read = processor(folder)
    model: Any = load(folder, device=device, dtype=dtype)
    if model.spec.towers:  # each is a model of its own: a picture is for the one, a text for the other
        model = model.image if Path(given).suffix.lower() in ENDINGS else model.text
    name = model.spec.embedding.inputs[0]
    if name not in ("input_ids", "pixel_values", "input_values", "input_features"):
        raise ValueError(f"this model reads {name}, and `look` texts, pictures and sound; use af.look in Python")
    words = speller(read)
    inputs = inputs_of(model, read, name, given)
    media = picture_of(model, name, inputs)
    wanted = "input_ids"
    if model.spec.pair:
        wanted = "decoder_input_ids"
        inputs[wanted] = written(model, read, inputs, target)
    elif target is not None:
        raise ValueError("--target is for models with an encoder and a decoder; this one has one stack")
    beside = None
    if other is not None:
        beside = inputs_of(model, read, name, other)
        if model.spec.pair:
            beside[wanted] = inputs[wanted]
    return Scene(model, inputs, name=Path(source).name or source, words=words, media=media, other=beside, target=wanted)


def inputs_of(model: TransformerModule, read: Processor, name: str, given: str) -> dict[str, Any]:
    kinds = {"pixel_values": ("a picture", ENDINGS), "input_values": ("a recording", SOUNDS),
             "input_features": ("a recording", SOUNDS), "input_ids": ("text", ())}  # fmt: skip
    wanted, path = kinds[name][0], Path(given).expanduser()
    is_file = len(given) < 4096 and "\n" not in given and path.suffix.lower() in (*ENDINGS, *SOUNDS) and path.is_file()
    if name == "input_ids":
        if is_file:
            found = "a picture" if path.suffix.lower() in ENDINGS else "a recording"
            raise ValueError(f"{given} is {found}, and this model reads text")
        return text_inputs(model, read, given)
    if not is_file:
        endings = ", ".join(kinds[name][1][:4])
        raise ValueError(f"this model reads {wanted}: give a file ({endings}, ...), not {given!r:.60}")
    if path.suffix.lower() not in kinds[name][1]:
        raise ValueError(f"{given} is not {wanted}, which this model reads")
    made = read(images=[path]) if name == "pixel_values" else read(audio=[path])
    return placed(model, {key: value for key, value in made.items() if key in model.inputs})


def text_inputs(model: TransformerModule, read: Processor, text: str) -> dict[str, Any]:
    belong(model, read.tokenizer)
    if not text:
        raise ValueError("the text is empty")
    made = read(text)
    own = getattr(getattr(model.spec.embedding, "position", None), "length", None)
    limit = own if own is not None else position_limit(model.spec)
    if not made["input_ids"].shape[1]:
        raise ValueError("the text has no tokens")
    if limit is not None and made["input_ids"].shape[1] > limit:
        raise ValueError(f"the text has {made['input_ids'].shape[1]:,} tokens, and this model takes at most {limit:,}")
    return placed(model, {key: value for key, value in made.items() if key in model.inputs})


def placed(model: TransformerModule, inputs: dict[str, Any]) -> dict[str, Any]:
    """On the model's device, and masks left out that hide nothing."""
    moved = {}
    for name, value in inputs.items():
        if isinstance(value, Tensor) and not (name == "attention_mask" and bool(value.all())):
            moved[name] = value.to(model.device, model.dtype if value.is_floating_point() else None)
    return moved


def written(model: TransformerModule, read: Processor, inputs: dict[str, Any], target: str | None) -> Tensor:
    """(1, T): the start token and what follows it."""
    if target is None:
        return generate(model, **inputs, max_new_tokens=WRITTEN)[:, :-1]
    start = model.spec.start_token
    if start is None:
        raise ValueError("--target: this model's config has no decoder_start_token_id")
    ids = [start, *read.tokenizer.encode_target(target)]
    return torch.tensor([ids], device=model.device)


def speller(read: Processor) -> Callable[[int], str]:
    """Token ids as text, a space before a word included."""
    try:
        tokenizer: Tokenizer = read.tokenizer
    except ValueError:
        return str

    def spell(number: int) -> str:
        raw = tokenizer.token(number)
        if raw is None:
            return f"#{number}"
        text = tokenizer.decode([number])
        if not text or "�" in text:
            return raw.replace("▁", " ").replace("Ġ", " ")
        return f" {text}" if raw[0] in "▁Ġ" and not text.startswith(" ") else text

    return spell


# -- pictures of what is not text -------------------------------------------------------------------------------------


def picture_of(model: TransformerModule, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """What the page shows behind attention: the image, or the spectrogram; and how its places lie."""
    if name == "pixel_values":
        pixels, read = inputs[name][0].float().cpu(), model.spec.embedding
        rows, columns = (math.ceil(side / step) for side, step in zip(pixels.shape[1:], read.patch_size))
        places = [f"[{i}]" for i in range(getattr(read, "prefix", 0))]
        places += [f"{row},{column}" for row in range(rows) for column in range(columns)]
        low, high = pixels.amin(), pixels.amax()
        shades = ((pixels - low) / (high - low).clamp(min=1e-6) * 255).byte()
        return {"image": png(shades), "grid": [rows, columns], "places": places, "about": "the image that was read"}
    if name == "input_features":
        power = inputs[name][0].float().cpu()
    elif name == "input_values":
        window = torch.hann_window(400)
        sound = inputs[name][0].float().cpu()
        power = torch.stft(sound, min(400, len(sound)), 160, window=window[: min(400, len(sound))],
                           return_complex=True).abs().clamp(min=1e-5).log()[:120]  # fmt: skip
    else:
        return {}
    low, high = power.amin(), power.amax()
    shades = ((power - low) / (high - low).clamp(min=1e-6) * 255).byte().flip(0)
    return {"image": png(shades[None]), "grid": [1, 0], "about": "the spectrogram of what was heard"}


def png(shades: Tensor) -> str:
    """A picture (1 or 3, rows, columns) of bytes as a data URL."""
    channels, rows, columns = shades.shape
    shades = shades if channels in (1, 3) else shades[:1]
    lines = b"".join(b"\0" + line.permute(1, 0).contiguous().numpy().tobytes() for line in shades.transpose(0, 1))

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", columns, rows, 8, 2 if len(shades) == 3 else 0, 0, 0, 0)
    made = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(made).decode()}"
