"""What a decoding state will hold, from the declarations of the mixers: nothing is allocated."""

from __future__ import annotations

import math

import torch

from anyformer.state import CrossSpec, KeyValueSpec, LatentSpec, RecurrentSpec


def bytes_of(each: object, batch: int, length: int, dtype: torch.dtype, source_length: int) -> int:
    """Bytes that one mixer keeps of `batch` texts of `length` tokens, after `source_length` read by an encoder."""
    match each:
        case KeyValueSpec():
            return 2 * batch * math.prod(each.shape(length)) * dtype.itemsize
        case LatentSpec():
            return batch * math.prod(each.shape(length)) * (4 if each.float32 else dtype.itemsize)
        case CrossSpec():
            return 2 * batch * each.num_heads * source_length * each.head_width * dtype.itemsize
        case RecurrentSpec():
            sizes = {name: 4 if name in each.float32 else dtype.itemsize for name, _ in each.shapes}
            return batch * sum(math.prod(shape) * sizes[name] for name, shape in each.shapes)
    if hasattr(each, "nbytes"):
        return each.nbytes(batch, length)
    raise TypeError(f"a state of kind {type(each).__name__} says nothing about its size")
