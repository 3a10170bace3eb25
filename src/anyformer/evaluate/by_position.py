"""Loss by token index: how much a model gains from a longer context [Kaplan et al. 2020, Olsson et al. 2022].

The index of a token is the number of tokens of its text before it. Indices are grouped by doublings (1, 2, 3 to 4, 5 to
8, ...). The derivative with respect to log(index) is the slope between the two neighbouring groups.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from anyformer.evaluate.likelihood import MAX_LOGITS, last_hidden_states, token_log_probs
from anyformer.models import TransformerModule
from anyformer.objectives.batches import Batch
from anyformer.objectives.heads import language_head
from anyformer.runtime.visibility import text_positions


@dataclasses.dataclass(frozen=True)
class PositionLoss:
    """The mean loss of the tokens with `first` to `last` tokens before them."""

    first: int
    last: int
    tokens: int
    loss: float  # nats per token
    slope: float | None = None  # derivative of the loss with respect to log(index); None if there is only one group

    @property
    def middle(self) -> float:
        return math.log(self.first * self.last) / 2


def group_losses(sums: Sequence[float], counts: Sequence[int]) -> list[PositionLoss]:
    """Group losses by doublings of the index, from the sum and number of losses of every index from 1 on."""
    groups, first = [], 1
    while first <= len(sums):
        last = min(2 ** math.ceil(math.log2(first)), len(sums))
        tokens, total = sum(counts[first - 1 : last]), sum(sums[first - 1 : last])
        if tokens:
            groups.append(PositionLoss(first, last, tokens, total / tokens))
        first = last + 1
    with_slopes = []
    for i, group in enumerate(groups):
        before, after = groups[max(i - 1, 0)], groups[min(i + 1, len(groups) - 1)]
        slope = (after.loss - before.loss) / (after.middle - before.middle) if len(groups) > 1 else None
        with_slopes.append(dataclasses.replace(group, slope=slope))
    return with_slopes


def losses_by_position(model: TransformerModule, batches: Iterable[Batch]) -> list[PositionLoss]:
    """Return the losses by position of a next-token model on batches of padded or packed texts."""
    sums, counts = torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.long)
    for batch in batches:
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        index, losses = (each.cpu() for each in token_losses(model, batch))
        size = max(len(sums), int(index.max()) + 1 if len(index) else 0)
        sums = sums.new_zeros(size).index_add(0, index, losses.double()) + pad_end(sums, size)
        counts = index.bincount(minlength=size) + pad_end(counts, size)
    if not len(sums):
        raise ValueError("no text has two tokens: there is no loss by position")
    return group_losses(sums[1:].tolist(), counts[1:].tolist())


def pad_end(values: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, size - len(values)))


@torch.inference_mode()
def token_losses(model: TransformerModule, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the index (N,) and loss (N,) of every token except the first of each text."""
    ids, real = batch["input_ids"], batch.get("attention_mask")
    x = last_hidden_states(model, batch)  # (B, T, D)
    positions = text_positions(real, batch.get("document_ids"))
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids) if positions is None else positions
    is_scored = positions[:, 1:] > 0  # (B, T - 1)
    if real is not None:
        is_scored = is_scored & real[:, 1:].bool()
    states, wanted = x[:, :-1][is_scored], ids[:, 1:][is_scored]
    head = language_head(model)
    step = max(1, MAX_LOGITS // head.part.vocab_size)
    losses = [-token_log_probs(head.scores(states[at : at + step]), wanted[at : at + step])[0]
              for at in range(0, len(states), step)]  # fmt: skip
    return positions[:, 1:][is_scored], torch.cat(losses) if losses else states.new_zeros(0)
