"""Checkpoints of a run: the model as `af.save` writes it, and the state for bit-exact resumption.

A checkpoint is a folder `checkpoints/step-00001000`: spec.json and model.safetensors (with the tokenizer), which
`anyformer generate` opens; training.safetensors with the optimizer state and other trained weights; state.json with the
counters. With sharded parameters each process writes its shards instead (weights/pieces.py); any number of processes
can read either form. Random states need no file: the generators are seeded from (seed, step, process) before each
step, and the data order is a function of (seed, step).
"""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from anyformer.checkpoint import plain_state, save, save_description
from anyformer.models import TransformerModule
from anyformer.models.construct import skeleton
from anyformer.train import parallel
from anyformer.weights import manifest
from anyformer.weights.io import Checkpoint, read_json, write_checkpoint, write_json
from anyformer.weights.manifest import STATE
from anyformer.weights.pieces import MODEL, Pieces, in_pieces, write_pieces

TENSORS = "training"  # .safetensors
DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk full, quota exceeded, file too large

Like = Callable[[str, str, tuple[int, ...]], Tensor | None]


@dataclasses.dataclass
class Saved:
    """The contents of a checkpoint."""

    folder: Path
    values: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]  # "weights", "optimizer", ... -> address -> tensor


class Checkpoints:
    """The checkpoints of a run folder; the last few and the best are kept."""

    def __init__(self, run: Path, last: int = 2, best: bool = True, pieces: bool = False) -> None:
        self.run, self.last, self.best, self.pieces = run, last, best, pieces

    def save(
        self, step: int, model: TransformerModule, values: Mapping[str, Any], **tensors: Mapping[str, Tensor]
    ) -> Path:
        """Write a checkpoint atomically. `tensors` has "weights" if the trained weights differ from the saved model
        (an average, a second network). values["score"]: lower is better."""
        target = self.run / "checkpoints" / f"step-{step:08}"
        flat = {f"{kind}/{name}": tensor for kind, named in tensors.items() for name, tensor in named.items()}
        with parallel.atomic_folder(target) as folder:
            if self.pieces:
                own = {name: t for name, t in plain_state(model).items() if not model.spec.owner_of(name)}
                used = {MODEL + name: tensor for name, tensor in own.items()}
                write_pieces(folder, {**used, **flat})
            if parallel.rank() == 0:
                if self.pieces:
                    save_description(model, folder)
                else:
                    save(model, folder)
                    write_checkpoint(folder, flat, stem=TENSORS)
                write_json(folder / STATE, {**values, "step": step})
        parallel.broadcast_result(self.prune)
        return target

    def prune(self) -> None:
        folders = manifest.steps(self.run)
        keep = set(list(folders)[-self.last :]) | ({self.best_step()} if self.best else set())
        for step, folder in folders.items():
            if step not in keep:
                manifest.remove(folder)

    def best_step(self) -> int | None:
        """Return the step with the lowest score; if several are equal, the first."""
        return next(iter(manifest.best_steps(self.run)), None)

    def steps(self) -> dict[int, Path]:
        return manifest.steps(self.run)

    def newest_step(self) -> int | None:
        return next(reversed(self.steps()), None)

    def explain_disk_full(self, error: OSError, step: int) -> OSError:
        """Return an error of a full disk at `step` with the path of the file and how to continue; any other error
        unchanged."""
        if error.errno not in DISK_FULL_ERRORS:
            return error
        path = Path(error.filename or self.run)
        if path.parent.name.startswith(".saving-"):  # the temporary folder of a checkpoint
            path = path.parent.with_name(f"step-{step:08}") / path.name
        newest = self.newest_step()
        if newest is None:
            advice = "free some space and start again"
        else:
            advice = f"free some space, then --resume continues from step {newest:,}"
        return OSError(error.errno, f"{error.strerror or error}; {advice}", str(path))

    def newest(self, like: Like | None = None) -> tuple[Saved | None, list[str]]:
        """Return the newest complete checkpoint, and what is wrong with the incomplete ones after it."""
        folder, faults = parallel.broadcast_result(lambda: manifest.newest(self.run))
        return (read(folder, like) if folder is not None else None), faults


def read(folder: Path, like: Like | None = None) -> Saved:
    """Read a checkpoint. `like(kind, address, shape)` returns a tensor with the sharding to use, or None."""
    values = read_json(folder / STATE)
    tensors: dict[str, dict[str, Tensor]] = {}
    if in_pieces(folder):
        pieces = Pieces(folder)
        stored = {*pieces.names}
        has_weights = any(name.startswith("weights/") for name in stored)
        targets = {}
        for name in sorted(stored if not has_weights else {n for n in stored if not n.startswith(MODEL)}):
            kind, _, address = name.partition("/")
            kind = "weights" if kind == "model" else kind
            model = like(kind, address, pieces.shape(name)) if like else None
            target = torch.empty(pieces.shape(name)) if model is None else torch.empty_like(model)
            targets[name] = tensors.setdefault(kind, {})[address] = target.to(pieces.dtype(name))
        pieces.read_into(targets, alone=parallel.world_size() == 1)
        return Saved(folder, values, tensors)
    with Checkpoint(folder, stem=TENSORS) as checkpoint:
        for name in checkpoint.names:
            kind, _, address = name.partition("/")
            tensors.setdefault(kind, {})[address] = checkpoint.read(name)
    if "weights" not in tensors:
        with Checkpoint(folder) as checkpoint:
            tensors["weights"] = {name: checkpoint.read(name) for name in checkpoint.names}
    for kind, address, tensor in [(k, a, t) for k, named in tensors.items() for a, t in named.items()]:
        model = like(kind, address, tuple(tensor.shape)) if like is not None else None
        if isinstance(model, DTensor):
            mesh, placements = model.device_mesh, model.placements
            tensors[kind][address] = distribute_tensor(tensor, mesh, placements, src_data_rank=None)
    return Saved(folder, values, tensors)


@torch.no_grad()
def gather_model(model: TransformerModule, device: torch.device) -> Any:
    """Return a full copy of a sharded model. All processes must call this."""
    copy = skeleton(model.spec)
    state = {name: parallel.full_tensor(tensor).detach() for name, tensor in plain_state(model).items()}
    copy.load_state_dict(state, assign=True)
    copy.tie()
    copy.folder, copy.kernel = model.folder, model.kernel
    return copy.to(device).eval()


@torch.no_grad()
def fill(module: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a module in place. One name per group of tied tensors is enough."""
    targets = module.state_dict(keep_vars=True)
    names: dict[int, list[str]] = {}
    for name, tensor in targets.items():
        names.setdefault(id(tensor), []).append(name)
    for same in names.values():
        present = next((name for name in same if name in weights), None)
        if present is None:
            raise ValueError(f"the checkpoint belongs to another model: {same[0]} is missing")
        if weights[present].shape != targets[present].shape:
            shapes = f"has shape {tuple(weights[present].shape)} instead of {tuple(targets[present].shape)}"
            raise ValueError(f"the checkpoint belongs to another model: {present} {shapes}")
        targets[present].copy_(weights[present])
