"""Checkpoints in pieces: each process of a sharded run writes what it holds, through torch.distributed.checkpoint.

The files are safetensors (`shard-00001-model-00001-of-00001.safetensors`, ...), whose headers say which part of which
tensor they hold: nothing is pickled, and any number of processes, one included, reads what it needs. Names are
"kind/address"; the model that is to be used lies under "model".
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from anyformer.weights.io import Checkpoint

MODEL = "model/"
STEMS = ("model", "diffusion_pytorch_model")  # of files with weights: transformers', and those of diffusers


def in_pieces(folder: Path) -> bool:
    return any(folder.glob("shard-*.safetensors"))


def has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


def open_weights(folder: Path) -> Checkpoint | Pieces:
    """The weights of a model folder, whichever way they lie in it."""
    if in_pieces(folder):
        return Pieces(folder, MODEL)
    stem = next((stem for stem in STEMS if any(folder.glob(f"{stem}*.safetensors*"))), STEMS[0])
    return Checkpoint(folder, stem=stem)


def write_pieces(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """All processes together. A tensor that each of them has whole is written once."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    with _quiet():
        checkpoint.save(
            {_stored_name(name, tensor): _flat(tensor) for name, tensor in tensors.items()},
            storage_writer=HuggingFaceStorageWriter(path=str(folder), save_distributed=True),
        )


class Pieces:
    """What `Checkpoint` is to whole files, for names that begin with `prefix`, which is left out."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

        self.folder, self.prefix = Path(folder), prefix
        try:
            with _quiet():
                self._found: Any = HuggingFaceStorageReader(path=str(folder)).read_metadata().state_dict_metadata
        except Exception as error:
            raise ValueError(f"{folder}: not a whole checkpoint in pieces ({error})") from None
        self._stored_name = {name.removesuffix("()"): name for name in self._found}
        self._whole: dict[str, Tensor] | None = None
        self.names = [name.removeprefix(prefix) for name in self._stored_name if name.startswith(prefix)]

    def shape(self, name: str) -> tuple[int, ...]:
        stored = self._stored_name[self.prefix + name]
        return () if stored.endswith("()") else tuple(self._found[stored].size)

    def dtype(self, name: str) -> torch.dtype:
        return self._found[self._stored_name[self.prefix + name]].properties.dtype

    def read(self, name: str) -> Tensor:
        if self._whole is None:  # all at once: to find a tensor, every file is looked at
            self._whole = {name: torch.empty(self.shape(name), dtype=self.dtype(name)) for name in self.names}
            self.read_into(self._whole, alone=True)
        return self._whole[name]

    def read_into(self, targets: Mapping[str, Tensor], alone: bool = False) -> None:
        """Fills tensors that may lie in pieces of any other kind. `alone`: no other process takes part."""
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

        wanted = {self._stored_name[self.prefix + name]: _flat(tensor) for name, tensor in targets.items()}
        with _quiet():
            checkpoint.load(wanted, storage_reader=HuggingFaceStorageReader(path=str(self.folder)), no_dist=alone)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.prefix + name in self._stored_name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._whole = None


def _stored_name(name: str, tensor: Tensor) -> str:
    return f"{name}()" if tensor.dim() == 0 else name  # a single number is kept as a list of one


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().view(1) if tensor.dim() == 0 else tensor.detach()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch.distributed.checkpoint talks of its own affairs."""
    logger = logging.getLogger("torch.distributed.checkpoint")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
