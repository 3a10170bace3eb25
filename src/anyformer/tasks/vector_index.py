"""Files of vectors for searches: safetensors, with the fingerprint of the model that computed the vectors."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn


def write_index(path: Path, about: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """Write an index atomically."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        save_file(dict(tensors), draft, dict(about))
        draft.replace(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: cannot be written ({error})") from None
    finally:
        draft.unlink(missing_ok=True)


def read_index(path: Path, kind: str, fields: tuple[str, ...]) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of an index; ValueError if it is not a readable index of this kind
    ("pictures", "texts") with these `fields` in its metadata."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safe_open(path, "pt") as file:
            about, tensors = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not an index of {kind}: {error}") from None
    missing = [name for name in ("model", *fields) if name not in about]
    missing += ["vectors"] if "vectors" not in tensors else []
    if missing:
        raise ValueError(f"{path} is not an index of {kind}: it lacks {', '.join(missing)}")
    return about, tensors


def fingerprint(model: nn.Module) -> str:
    """Return a digest of a model's weights, equal on every device."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {zlib.crc32(raw)}".encode())
    return digest.hexdigest()


def best_rows(table: Tensor, vector: Tensor, top_k: int) -> list[tuple[int, float]]:
    """Return (row, cosine) of the rows of a table (N, D) that are most similar to a vector (D,), the best first."""
    best = torch.mv(table, vector).topk(min(top_k, len(table)))
    return list(zip(best.indices.tolist(), best.values.tolist()))
