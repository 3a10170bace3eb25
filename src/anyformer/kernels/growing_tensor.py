"""Tensors that are appended to repeatedly, without copying the whole tensor each time."""

from __future__ import annotations

import torch
from torch import Tensor


class Appender:
    """Computes `torch.cat((held, new), dim)`. If `held` is the last result, new entries are written after its end, into
    memory with room for more. Entries that were returned are never overwritten, and any tensor other than the last
    result is copied, so results can be shared, sliced and reordered."""

    def __init__(self) -> None:
        self.memory: Tensor | None = None
        self.last: Tensor | None = None  # the last result: the beginning of `memory`, if that is not None

    def __call__(self, held: Tensor, new: Tensor, dim: int) -> Tensor:
        S, T = held.shape[dim], new.shape[dim]
        fits = new.dtype == held.dtype and new.shape == (*held.shape[:dim], T, *held.shape[dim + 1 :])
        # autograd may have saved the tensors, and a compiler must see plain operations
        if held is not self.last or not fits or torch.is_grad_enabled() or torch.compiler.is_compiling():
            self.memory, self.last = None, torch.cat((held, new), dim)
            return self.last
        memory = self.memory
        outside = memory is not None and memory.is_inference() != torch.is_inference_mode_enabled()
        if memory is None or outside or memory.shape[dim] < S + T:
            room = S + T + max(S // 2, 32)  # growth by half: each token is copied about twice in total
            memory = held.new_empty(*held.shape[:dim], room, *held.shape[dim + 1 :])
            memory.narrow(dim, 0, S).copy_(held)
        memory.narrow(dim, S, T).copy_(new)
        self.memory, self.last = memory, memory.narrow(dim, 0, S + T)
        return self.last
