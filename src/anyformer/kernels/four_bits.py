"""Products with 4-bit weights on ARM, for which torch has fast kernels, and with 8-bit weights as two 4-bit products.

Torch rounds each row of x to 8 bits, with its own scale and offset. The sums of x are computed here, unrounded, so that
NaN and infinity propagate. M rows, K width in, N width out, G groups.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.packed import PackedWeights

BYTES, GROUPS = PackedWeights(), PackedWeights()


def int8_linear(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """x (M, K) fp32, weight (N, K) int8, scale (N,) -> (M, N). A byte is 16 * high + low + 8, with high and low from -8
    to 7; the 8 is multiplied by the sum of x."""
    packed, eights = BYTES.get(weight, lambda: pack_bytes(weight, scale))
    both = multiply(x, packed, 2 * len(weight))
    return both[:, : len(weight)].add_(both[:, len(weight) :]).addcmul_(x.sum(1, keepdim=True), eights)


def pack_bytes(weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    halves = torch.cat(((weight >> 4) + 8, weight & 15)).view(torch.uint8)
    return pack(halves, torch.cat((16 * scale, scale))[:, None]), 8 * scale


def int4_linear(x: Tensor, weight: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """x (M, K) fp32 times 4-bit weights of kernels/quantized.py -> (M, N). Torch's 4-bit format has no offset, so the
    offset is multiplied by the sum of its group's inputs."""
    (N, G), width = scale.shape, 2 * weight.shape[1]
    x = F.pad(x, (0, width - x.shape[1]))
    packed, rest = GROUPS.get(weight, lambda: pack_groups(weight, scale, offset))
    return torch.addmm(multiply(x, packed, N, width // G), x.view(len(x), G, -1).sum(2), rest)


def pack_groups(weight: Tensor, scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    pairs = weight.unflatten(1, (scale.shape[1], -1))  # (N, G, half a group)
    return pack(torch.cat((pairs & 15, pairs >> 4), 2).flatten(1), scale), (offset.float() + 8 * scale.float()).t()


def pack(numbers: Tensor, scale: Tensor) -> Tensor:
    """Pack numbers (N, K) from 0 to 15, which represent -8 to 7, and scales (N, G) for torch's kernel."""
    (N, K), G = numbers.shape, scale.shape[1]
    pairs = numbers[:, ::2] | numbers[:, 1::2] << 4
    scale = scale.float() if G == 1 else scale.bfloat16()  # the types that the operation takes
    return torch.ops.aten._dyn_quant_pack_4bit_weight(pairs.contiguous(), scale.contiguous(), None, K // G, K, N)


def multiply(x: Tensor, packed: Tensor, N: int, group: int | None = None) -> Tensor:
    return torch.ops.aten._dyn_quant_matmul_4bit(x.contiguous(), packed, group or x.shape[1], x.shape[1], N)
