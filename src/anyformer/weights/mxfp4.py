"""Weights that are stored in MXFP4 [OCP Microscaling Formats, 2023]: 32 numbers of four bits (e2m1) share a power of
two. They are dequantised when they are loaded, without rounding; an export writes the plain weights.

E experts, D inputs, F outputs of a matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.specs.messages import quote
from anyformer.weights.rules import Rename, Rule

BLOCK = 32  # numbers per scale
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of the lower three bits; the fourth bit is the sign


class MXFP4(Rule):
    """`plain`, a rule of one matrix per expert (E, D, F), for a checkpoint that stores the matrices transposed and in
    MXFP4: two numbers per byte in NAME_blocks (E, F, D / 32, 16), the lower bits first, and exponents + 127 in
    NAME_scales (E, F, D / 32)."""

    written = False

    def __init__(self, plain: Rename) -> None:
        super().__init__([f"{plain.sources[0]}_{part}" for part in ("blocks", "scales")], plain.targets)
        self.plain = plain

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        blocks, scales = tensors
        whole = torch.empty(shapes[0], dtype=torch.bfloat16, device=blocks.device)
        for e in range(0 if blocks.is_meta else len(whole)):  # one expert at a time, to need little memory
            expert = dequantize(blocks[e], scales[e]).t()[None]
            whole[e] = self.plain.load([expert], [expert.shape])[0][0]
        return [whole]

    def misfits(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[str]:
        E, D, F = shapes[0]
        needed = (E, F, -(-D // BLOCK), BLOCK // 2), (E, F, -(-D // BLOCK))
        return [
            ""
            if tuple(has.shape) == needs and has.dtype == torch.uint8 and D % BLOCK == 0
            else f"the checkpoint has {has.dtype} {quote(tuple(has.shape), 80)}, the model needs torch.uint8 {needs}"
            for has, needs in zip(tensors, needed, strict=True)
        ]


def dequantize(blocks: Tensor, scales: Tensor) -> Tensor:
    """Bytes (..., n, 16) with two numbers each and exponents + 127 (..., n) -> bf16 (..., 32 n)."""
    numbers = torch.tensor([*MAGNITUDES, *(-value for value in MAGNITUDES)])
    pairs = torch.stack((numbers.repeat(16), numbers.repeat_interleave(16)), dim=-1)  # of each byte: (256, 2)
    values = torch.ldexp(pairs[blocks.int()], scales.int()[..., None, None] - 127)  # (..., n, 16, 2)
    return values.flatten(-3).bfloat16()
