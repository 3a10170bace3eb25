"""Runs a model over a prompt and then token by token, whatever it remembers.

Prompts of unequal length are moved to the right end of their rows first: pads on the left change nothing in any model
here, and then the next token is always predicted at the last place.

B rows, T tokens of a row, V vocabulary, D width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.batch_rows import mask_or_ones
from anyformer.models import Call, TransformerModule
from anyformer.runtime.inputs import boolean_mask
from anyformer.runtime.state import State
from anyformer.runtime.taps import OutputCollector

MEMORY = ("encoder_outputs", "encoder_hidden_states", "encoder_attention_mask")  # read once: a state remembers them


def align_right(ids: Tensor, mask: Tensor) -> Tensor:
    """Rows (B, T, ...) with their real tokens at the end."""
    order = mask.int().argsort(dim=1, stable=True)
    return ids.gather(1, order if ids.dim() == 2 else order[..., None].expand_as(ids))


def extend(labels: Tensor, length: int) -> Tensor:
    """Labels (B, T) of a prompt for a row of this length: what is written has the label of the prompt's last token."""
    return torch.cat((labels, labels[:, -1:].expand(-1, max(length - labels.shape[1], 0))), dim=1)


class Stepper:
    """A model, what it read, and what it remembers."""

    def __init__(
        self, model: TransformerModule, source: dict[str, Any], use_cache: bool, chunk: int | None = None
    ) -> None:
        self.model, self.source = model, dict(source)
        self.pair = model.spec.pair  # an encoder read the source
        self.prefix = "decoder_" if self.pair else ""
        names = () if self.pair else model.spec.embedding.token_labels
        self.labels = {name: self.source.pop(name) for name in names if name in self.source}  # (B, T) each
        self.use_cache, self.chunk = use_cache and model.remembers, chunk
        self.state: State | None = None
        self.mask: Tensor | None = None  # (B, T) of the decoder's row; None when nothing is padded
        self.read_ids: Tensor | None = None  # (B, T) kept where nothing is remembered
        self.embeds: Tensor | None = None  # (B, T, D) in their place
        self.rows = self.length = 0  # of tokens read, pads counted
        self.recording: Any = None  # of single steps (generation/fast.py), where one was made
        self.around: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()  # a step (generation/fast.py)
        self.wants_hidden = False
        self.hidden: Tensor | None = None  # (B, tokens of the last call, D) the last layer's, where they are wanted

    def begin(
        self, ids: Tensor, mask: Tensor | None, embeds: Tensor | None = None, state: State | None = None
    ) -> Tensor:
        """Reads the prompt; the scores of the token after it (B, V)."""
        self.rows, self.mask = ids.shape[0], mask
        if self.pair and "encoder_outputs" not in self.source and (state is None or state.memory is None):
            names = (*self.model.spec.embedding.inputs, *self.model.tree_inputs)
            reading = {n: v for n, v in self.source.items() if n in names}
            self.source["encoder_outputs"], read = self.model.encode(Call(reading, kernel=self.model.kernel))
            if read.is_token is not None:  # of what the encoder says: a frame of sound stands for many samples
                self.source["attention_mask"] = read.is_token
        if self.pair:
            self.source = {n: v for n, v in self.source.items() if n in ("attention_mask", "encoder_outputs")}
            memory = self.source.get("encoder_outputs")
            if memory is not None and not isinstance(memory, Tensor):
                self.source["encoder_outputs"] = memory[0]
        if not self.use_cache:
            self.read_ids = ids[:, :0]
            self.embeds = embeds
            return self.read(ids, 1)[:, -1]
        self.state = state if state is not None else self.model.new_state()
        self.length = self.state.length
        if mask is not None and self.state.capacity is None:  # rows were moved to end together: does what is known fit?
            before = mask_or_ones(self.state.is_token, (self.rows, self.length), mask.device)
            if not torch.equal(before, mask[:, : self.length].bool()):
                raise ValueError("past_key_values holds other tokens than the prompt begins with, its pads left out")
        T = ids.shape[1] if embeds is None else embeds.shape[1]
        hidden: list[Any] = []
        scores = None
        for start in range(self.length, T, self.chunk or T):
            end = min(start + (self.chunk or T), T)
            scores = self._run(ids[:, start:end], None if embeds is None else embeds[:, start:end], end - start, 1)
            hidden.append(self.hidden)
        if scores is None:
            raise ValueError(
                f"past_key_values already holds {self.length} tokens: nothing of the prompt's {T} is left to read"
            )
        if self.wants_hidden:
            self.hidden = torch.cat(hidden, dim=1)
        if self.state.memory is not None:
            read_once = (*MEMORY, "attention_mask") if self.pair else MEMORY
            self.source = {n: v for n, v in self.source.items() if n not in read_once}
        return scores[:, -1]

    def step(self, tokens: Tensor) -> Tensor:
        """The scores (B, V) after one more token (B,) of each row."""
        return self.read(tokens[:, None], 1)[:, -1]

    def read(self, tokens: Tensor, keep: int) -> Tensor:
        """Reads more tokens (B, n); the scores after each of the last `keep` of them (B, keep, V)."""
        n = tokens.shape[1]
        if self.mask is not None and self.length:
            self.mask = F.pad(self.mask, (0, n), value=True)
        self.labels = {name: extend(labels, self.length + n) for name, labels in self.labels.items()}
        if self.recording is not None and n == keep == 1:
            self.length += 1
            return self.recording.read(tokens[:, 0])[:, None]
        if self.state is not None:
            return self._run(tokens, None, n, keep)
        assert self.read_ids is not None
        self.read_ids = torch.cat((self.read_ids, tokens), dim=1)
        if self.embeds is None:
            return self._run(self.read_ids, None, n, keep)
        if self.length:
            self.embeds = torch.cat((self.embeds, self.model.embedding.tokens(tokens)), dim=1)
        return self._run(self.read_ids, self.embeds, self.embeds.shape[1] - self.length, keep)

    def _run(self, ids: Tensor, embeds: Tensor | None, new: int, keep: int) -> Tensor:
        self.length += new
        inputs: dict[str, Any] = dict(self.source)
        name, given = ("input_ids", ids) if embeds is None else ("inputs_embeds", embeds)
        inputs[self.prefix + name] = given
        if self.mask is not None and self.recording is None:  # a recording's state knows which are real
            row = self.mask[:, : self.length]
            if self.state is not None and self.state.capacity is not None:  # a static state wants the whole row
                row = F.pad(row, (0, self.state.capacity - row.shape[1]), value=True)
            inputs[f"{self.prefix}attention_mask"] = row
        inputs |= {n: v[:, self.length - given.shape[1] : self.length] for n, v in self.labels.items()}
        if self.model.predicts_by_position:
            inputs = self.model.embedding.ask_next(inputs)
        shown = OutputCollector(self.model.shows, ("output_hidden_states",), None) if self.wants_hidden else None
        resumed = self.state is not None and (self.state.capacity is not None or self.state.length > 0)
        call = Call({**inputs, "logits_to_keep": keep}, self.state, shown, self.model.kernel)
        with self.around:
            outputs = self.model(call)
        self.model.check_finite(outputs, call, resumed)
        if shown is not None:
            self.hidden = self.model.collect_outputs(shown)[f"{self.prefix}hidden_states"][-1]
        return outputs["logits"].float()

    def check_finite(self, ids: Tensor) -> None:
        """A recorded step cannot stop at a NaN: where there was one, the text (B, T) is read again to say where."""
        if self.recording is not None and bool(self.recording.buffers.broken):
            memory = self.state.memory if self.pair and self.state is not None else None
            memory = None if memory is None else memory[: ids.shape[0]]
            self.model(**{f"{self.prefix}input_ids": ids}, encoder_outputs=memory, use_cache=False)
            raise FloatingPointError("a recorded step gave scores that are NaN")

    def result(self) -> State | None:
        """The state to go on from: the caller's own, whatever is written next."""
        if self.recording is None or self.state is None:
            return self.state
        return self.state.to_growing(self.length)

    # -- going back, and to other rows ----------------------------------------------------------------------------

    def fork(self) -> Stepper:
        """A copy that goes its own way."""
        copy = object.__new__(Stepper)
        state = None if self.state is None else self.state.fork()
        copy.__dict__ = {**self.__dict__, "state": state, "recording": None}
        return copy

    @property
    def can_rewind(self) -> bool:
        return self.state is None or self.state.can_truncate

    def rewind(self, count: int) -> None:
        """Forgets the last `count` tokens."""
        if self.state is not None:
            self.state.truncate(self.state.length - count)
        self.length -= count
        if self.mask is not None:
            self.mask = self.mask[:, : self.length]
        self.labels = {n: v[:, : self.length] for n, v in self.labels.items()}
        if self.read_ids is not None:
            self.read_ids = self.read_ids[:, : self.read_ids.shape[1] - count]
        if self.embeds is not None:
            self.embeds = self.embeds[:, : self.length]

    def reorder(self, rows: Tensor, same_memory: bool = False) -> None:
        """Row i goes on from old row rows[i]; `same_memory`: both read the same source."""
        if self.state is not None:
            self.state.reorder(rows, same_memory)
        self.rows = rows.shape[0]
        self.labels = {n: v.index_select(0, rows) for n, v in self.labels.items()}
        for name in ("mask", "read_ids", "embeds", "hidden"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value.index_select(0, rows))
        if not same_memory:
            self.source = {n: v.index_select(0, rows) if isinstance(v, Tensor) else v for n, v in self.source.items()}

    def join(self, others: Sequence[Stepper]) -> None:
        """Takes in the rows of other steppers of this model, behind its own. All end at the same place: shorter texts
        get pads on their left."""
        every = (self, *others)
        length, rows = max(each.length for each in every), sum(each.rows for each in every)
        device = self.model.device
        real = [
            torch.ones(each.rows, each.length, dtype=torch.bool, device=device) if each.mask is None else each.mask
            for each in every
        ]
        mask = torch.cat([F.pad(own, (length - own.shape[1], 0), value=False) for own in real])
        if self.state is not None:
            self.state = State.concatenate([each.state for each in every if each.state is not None])

        def end_together(rows: list[Tensor]) -> Tensor:
            return torch.cat([F.pad(row, (length - row.shape[1], 0)) for row in rows])

        self.labels = {name: end_together([each.labels[name] for each in every]) for name in self.labels}
        if self.read_ids is not None:
            self.read_ids = end_together([each.read_ids for each in every if each.read_ids is not None])
        for name, first in list(self.source.items()):
            values = [each.source[name] for each in every]
            longest = max(value.shape[1] for value in values)
            sizes = [(*[0, 0] * (first.dim() - 2), 0, longest - value.shape[1]) for value in values]
            self.source[name] = torch.cat([F.pad(value, size) for value, size in zip(values, sizes, strict=True)])
        self.mask, self.rows, self.length = boolean_mask(mask), rows, length

    def trim(self) -> None:
        """Forgets places that hold a pad in every row: they are at the left, where longer texts once began."""
        count = 0 if self.mask is None else int((self.mask.cumsum(1).amax(0) == 0).sum())
        if not count:
            return
        assert self.mask is not None
        if self.state is not None:
            self.state.trim(count)
        self.length -= count
        self.mask = boolean_mask(self.mask[:, count:])
        self.labels = {n: v[:, count:] for n, v in self.labels.items()}
        self.read_ids = None if self.read_ids is None else self.read_ids[:, count:]

    def repeat(self, times: int) -> None:
        """Every row `times` times, one copy after the other."""
        if times > 1:
            device = self.model.device
            self.reorder(torch.arange(self.rows, device=device).repeat_interleave(times))
