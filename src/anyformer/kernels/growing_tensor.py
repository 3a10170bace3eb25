"""Tensors that are lengthened at their end again and again, without a copy of all that is there each time."""

from __future__ import annotations

import torch
from torch import Tensor


class Appender:
    """`torch.cat((held, new), dim)`. Who lengthens the result again gets memory with room for more, and from then on
    the new is written behind the end. What was handed out is never written into, and any tensor but the last result is
    copied: so results can be shared, cut and reordered."""

    def __init__(self) -> None:
        self.memory: Tensor | None = None
        self.last: Tensor | None = None  # as handed out: the beginning of the memory, where there is one

    def __call__(self, held: Tensor, new: Tensor, dim: int) -> Tensor:
        S, T = held.shape[dim], new.shape[dim]
        fits = new.dtype == held.dtype and new.shape == (*held.shape[:dim], T, *held.shape[dim + 1 :])
        # autograd may need what it saw as it was, and a compiler had better see what happens
        if held is not self.last or not fits or torch.is_grad_enabled() or torch.compiler.is_compiling():
            self.memory, self.last = None, torch.cat((held, new), dim)
            return self.last
        memory = self.memory
        outside = memory is not None and memory.is_inference() != torch.is_inference_mode_enabled()
        if memory is None or outside or memory.shape[dim] < S + T:
            room = S + T + max(S // 2, 32)  # half as much again: a token is copied about twice in all
            memory = held.new_empty(*held.shape[:dim], room, *held.shape[dim + 1 :])
            memory.narrow(dim, 0, S).copy_(held)
        memory.narrow(dim, S, T).copy_(new)
        self.memory, self.last = memory, memory.narrow(dim, 0, S + T)
        return self.last
