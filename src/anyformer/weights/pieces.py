"""Sharded checkpoints: each process of a sharded run writes its shards, through torch.distributed.checkpoint.

The files are safetensors (`shard-00001-model-00001-of-00001.safetensors`, ...). Their headers name each tensor and the
part of it that they contain, so nothing is pickled, and any number of processes can read them. Tensor names are
"kind/address"; the kind of the model's weights is "model".
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
STEMS = ("model", "diffusion_pytorch_model")  # stems of weight files: of transformers and of diffusers


def in_pieces(folder: Path) -> bool:
    return any(folder.glob("shard-*.safetensors"))


def has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


def open_weights(folder: Path) -> Checkpoint | Pieces:
    """Open the weights of a model folder, sharded by process or not."""
    if in_pieces(folder):
        return Pieces(folder, MODEL)
    stem = next((stem for stem in STEMS if any(folder.glob(f"{stem}*.safetensors*"))), STEMS[0])
    return Checkpoint(folder, stem=stem)


def write_pieces(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a sharded checkpoint; all processes must call it. A tensor that is not sharded is written once."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    with _quiet():
        checkpoint.save(
            {_stored_name(name, tensor): _flat(tensor) for name, tensor in tensors.items()},
            storage_writer=HuggingFaceStorageWriter(path=str(folder), save_distributed=True),
        )


class Pieces:
    """Like `Checkpoint`, for sharded checkpoints: the tensors whose names begin with `prefix`, without it."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

        self.folder, self.prefix = Path(folder), prefix
        try:
            with _quiet():
                self._found: Any = HuggingFaceStorageReader(path=str(folder)).read_metadata().state_dict_metadata
        except Exception as error:
            raise ValueError(f"{folder}: not a complete sharded checkpoint ({error})") from None
        self._stored_name = {name.removesuffix("()"): name for name in self._found}
        self._whole: dict[str, Tensor] | None = None
        self.names = [name.removeprefix(prefix) for name in self._stored_name if name.startswith(prefix)]

    def shape(self, name: str) -> tuple[int, ...]:
        stored = self._stored_name[self.prefix + name]
        return () if stored.endswith("()") else tuple(self._found[stored].size)

    def dtype(self, name: str) -> torch.dtype:
        return self._found[self._stored_name[self.prefix + name]].properties.dtype

    def read(self, name: str) -> Tensor:
        if self._whole is None:  # all tensors at once, because each read opens every file
            self._whole = {name: torch.empty(self.shape(name), dtype=self.dtype(name)) for name in self.names}
            self.read_into(self._whole, alone=True)
        return self._whole[name]

    def read_into(self, targets: Mapping[str, Tensor], alone: bool = False) -> None:
        """Fill tensors, which may be sharded differently from the files. `alone`: no other process takes part."""
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
    return f"{name}()" if tensor.dim() == 0 else name  # a scalar is stored as a list of one


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().view(1) if tensor.dim() == 0 else tensor.detach()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log messages and warnings of torch.distributed.checkpoint."""
    logger = logging.getLogger("torch.distributed.checkpoint")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
