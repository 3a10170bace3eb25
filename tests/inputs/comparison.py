"""Compare `af.processor` with transformers' AutoProcessor: names and tensors of the same calls on the same folder.

PYTHONPATH=src:tests python tests/inputs/comparison.py      # prints the table of docs/results/families.md
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import anyformer as af
from inputs import folders

FIRST, SECOND = "The fox, it's 42!", "the fox says na\u00efve, \u00fcx"
# positional arguments and options of a call
Call = tuple[tuple[Any, ...], dict[str, Any]]
TEXTS: dict[str, Call] = {
    "one text": ((FIRST,), {}),
    "a pair": ((FIRST, SECOND), {}),
    "a batch": (([FIRST, SECOND, "a"],), {"padding": True}),
    "a batch of pairs, cut": (([FIRST, SECOND], [SECOND, "a b"]),
                              {"padding": True, "truncation": True, "max_length": 9}),
    "a batch to one length": (([FIRST, SECOND],), {"padding": "max_length", "truncation": True, "max_length": 30}),
    "no special tokens": ((FIRST,), {"add_special_tokens": False}),
}  # fmt: skip
PICTURES = [np.random.default_rng(i).integers(0, 256, (20 - 7 * i, 17 + 14 * i, 3), dtype=np.uint8) for i in range(2)]
SOUNDS = [np.sin(np.arange(n) / 7).astype(np.float32) / 2 for n in (3000, 2400)]


@dataclasses.dataclass
class Comparison:
    kind: str  # the class with which transformers reads the folder
    keys: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # call -> names of transformers' tensors
    differences: list[str] = dataclasses.field(default_factory=list)

    @property
    def all_keys(self) -> list[str]:
        return list(dict.fromkeys(key for keys in self.keys.values() for key in keys))


def compare(folder: Path) -> Comparison:
    media = any((folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json"))
    kind = transformers.AutoProcessor if media else transformers.AutoTokenizer
    ours, theirs = af.processor(folder), kind.from_pretrained(folder)
    text = getattr(theirs, "tokenizer", theirs if hasattr(theirs, "encode") else None)
    found = Comparison(type(theirs).__name__.removesuffix("Pil"))  # the suffix if torchvision is not installed
    for name, (arguments, options) in calls(ours, text).items():
        asked = text if name in TEXTS else theirs
        padding = {"padding": True} if name == "sounds" and "input_values" in theirs.model_input_names else {}
        wanted = asked(*arguments, return_tensors="pt", **options, **padding)
        made = ours(*arguments, **options)
        found.keys[name] = list(wanted)
        if made.keys() != wanted.keys():
            found.differences.append(f"{name}: {', '.join(made)} instead of {', '.join(wanted)}")
        both = made.keys() & wanted.keys()
        found.differences += [f"{name}: {key}" for key in sorted(both) if not same(made[key], wanted[key])]
    return found


def calls(ours: Any, text: Any) -> dict[str, Call]:
    """Return the calls that suit the folder's inputs."""
    made: dict[str, Call] = {}
    if text is not None and text.pad_token is None:
        text.pad_token = text.eos_token  # ours pads with it too
    mark = folders.MARK if text is not None and folders.MARK in text.get_vocab() else ""
    if text is not None and not mark:
        made |= TEXTS
    if "images" in ours.media and text is not None:
        made["texts and images"] = ((), {"text": [mark + FIRST, mark + "a"], "images": PICTURES, "padding": True})
    if "images" in ours.media and not mark:
        made["images"] = ((), {"images": PICTURES})
    if "audio" in ours.media:
        made["sounds"] = ((), {"audio": SOUNDS, "sampling_rate": 16000})
        made["a text and a sound"] = ((), {"text": FIRST, "audio": SOUNDS[:1], "sampling_rate": 16000})
    return made


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two tensors are equal: integers exactly, pixels and frames up to rounding."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    return torch.allclose(ours, theirs, atol=1e-5) if ours.is_floating_point() else torch.equal(ours, theirs)


def row(family: str, found: Comparison) -> str:
    keys = ", ".join(f"`{key}`" for key in found.all_keys)
    return f"| {family} | {found.kind} | {keys} | {'no' if found.differences else 'yes'} |"


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    print("| family | class in transformers | tensors | equal |\n|---|---|---|---|")
    for family in sys.argv[1:] or folders.FAMILIES:
        with tempfile.TemporaryDirectory() as temporary:
            print(row(family, compare(folders.family_folder(family, Path(temporary)))), flush=True)
