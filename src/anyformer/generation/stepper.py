"""Runs a model over a prompt and then token by token, with or without a decoding state.

Prompts of unequal length are aligned to the right first: padding on the left does not change any model's output, and
the next token is then always predicted in the last column.

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

MEMORY = ("encoder_outputs", "encoder_hidden_states", "encoder_attention_mask")  # read once: the state keeps them


def align_right(ids: Tensor, mask: Tensor) -> Tensor:
    """Move the padding of each row (B, T, ...) to the left."""
    order = mask.int().argsort(dim=1, stable=True)
    return ids.gather(1, order if ids.dim() == 2 else order[..., None].expand_as(ids))


def extend(labels: Tensor, length: int) -> Tensor:
    """Extend labels (B, T) of a prompt to `length` tokens: new tokens have the label of the prompt's last token."""
    return torch.cat((labels, labels[:, -1:].expand(-1, max(length - labels.shape[1], 0))), dim=1)


class Stepper:
    """A model, the tokens that it has read, and its decoding state."""

    def __init__(
        self, model: TransformerModule, source: dict[str, Any], use_cache: bool, chunk: int | None = None
    ) -> None:
        self.model, self.source = model, dict(source)
        self.pair = model.spec.pair  # encoder-decoder: the encoder reads the source
        self.prefix = "decoder_" if self.pair else ""
        names = () if self.pair else model.spec.embedding.token_labels
        self.labels = {name: self.source.pop(name) for name in names if name in self.source}  # (B, T) each
        self.use_cache, self.chunk = use_cache and model.remembers, chunk
        self.state: State | None = None
        self.mask: Tensor | None = None  # (B, T) True for real tokens of the decoder; None: no padding
        self.read_ids: Tensor | None = None  # (B, T) all tokens read; only without a state
        self.embeds: Tensor | None = None  # (B, T, D) used instead of `read_ids`
        self.rows = self.length = 0  # length: tokens read, padding included
        self.captured: Any = None  # CapturedDecoder (generation/fast.py) of single steps, if captured
        self.around: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()  # entered around each step
        self.wants_hidden = False
        self.hidden: Tensor | None = None  # (B, tokens of the last call, D) last hidden states, if wants_hidden

    def begin(
        self, ids: Tensor, mask: Tensor | None, embeds: Tensor | None = None, state: State | None = None
    ) -> Tensor:
        """Read the prompt and return the scores (B, V) of the next token."""
        self.rows, self.mask = ids.shape[0], mask
        if self.pair and "encoder_outputs" not in self.source and (state is None or state.memory is None):
            names = (*self.model.spec.embedding.inputs, *self.model.extra_inputs)
            reading = {n: v for n, v in self.source.items() if n in names}
            self.source["encoder_outputs"], read = self.model.encode(Call(reading, kernel=self.model.kernel))
            if read.is_token is not None:  # mask of the encoder's output: an audio frame covers many samples
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
        if mask is not None and self.state.capacity is None:  # rows are aligned: the past must have the same padding
            before = mask_or_ones(self.state.is_token, (self.rows, self.length), mask.device)
            if not torch.equal(before, mask[:, : self.length].bool()):
                raise ValueError("past_key_values has different padding than the beginning of the prompt")
        T = ids.shape[1] if embeds is None else embeds.shape[1]
        hidden: list[Any] = []
        scores = None
        for start in range(self.length, T, self.chunk or T):
            end = min(start + (self.chunk or T), T)
            scores = self._run(ids[:, start:end], None if embeds is None else embeds[:, start:end], end - start, 1)
            hidden.append(self.hidden)
        if scores is None:
            raise ValueError(
                f"past_key_values already contains {self.length} tokens and the prompt has {T}: no new token to read"
            )
        if self.wants_hidden:
            self.hidden = torch.cat(hidden, dim=1)
        if self.state.memory is not None:
            read_once = (*MEMORY, "attention_mask") if self.pair else MEMORY
            self.source = {n: v for n, v in self.source.items() if n not in read_once}
        return scores[:, -1]

    def step(self, tokens: Tensor) -> Tensor:
        """Read one token (B,) per row and return the scores (B, V) after it."""
        return self.read(tokens[:, None], 1)[:, -1]

    def read(self, tokens: Tensor, keep: int) -> Tensor:
        """Read tokens (B, n) and return the scores (B, keep, V) after each of the last `keep` of them."""
        n = tokens.shape[1]
        if self.mask is not None and self.length:
            self.mask = F.pad(self.mask, (0, n), value=True)
        self.labels = {name: extend(labels, self.length + n) for name, labels in self.labels.items()}
        if self.captured is not None and n == keep == 1:
            self.length += 1
            return self.captured.read(tokens[:, 0])[:, None]
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
        if self.mask is not None and self.captured is None:  # a captured step's state has the mask
            row = self.mask[:, : self.length]
            if (
                self.state is not None and self.state.capacity is not None
            ):  # a static state needs the mask of its whole capacity
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
        """Raise if a captured step gave NaN. The text (B, T) is read again without a capture, to report the layer."""
        if self.captured is not None and bool(self.captured.buffers.broken):
            memory = self.state.memory if self.pair and self.state is not None else None
            memory = None if memory is None else memory[: ids.shape[0]]
            self.model(**{f"{self.prefix}input_ids": ids}, encoder_outputs=memory, use_cache=False)
            raise FloatingPointError("a captured decoding step gave NaN scores")

    def result(self) -> State | None:
        """Return the state to continue from. Later calls do not change it."""
        if self.captured is None or self.state is None:
            return self.state
        return self.state.to_growing(self.length)

    # -- rewinding and changing rows ------------------------------------------------------------------------------

    def fork(self) -> Stepper:
        """Return an independent copy."""
        copy = object.__new__(Stepper)
        state = None if self.state is None else self.state.fork()
        copy.__dict__ = {**self.__dict__, "state": state, "captured": None}
        return copy

    @property
    def can_rewind(self) -> bool:
        return self.state is None or self.state.can_truncate

    def rewind(self, count: int) -> None:
        """Drop the last `count` tokens."""
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
        """Replace row i by row rows[i]; `same_memory`: both rows have the same source."""
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
        """Append the rows of other steppers of this model. Shorter texts are padded on the left."""
        every = (self, *others)
        length, rows = max(each.length for each in every), sum(each.rows for each in every)
        device = self.model.device
        real = [
            torch.ones(each.rows, each.length, dtype=torch.bool, device=device) if each.mask is None else each.mask
            for each in every
        ]
        mask = torch.cat([F.pad(each, (length - each.shape[1], 0), value=False) for each in real])
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
        """Drop leading columns that are padding in every row, after longer texts have ended."""
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
        """Repeat every row `times` times; copies of a row are adjacent."""
        if times > 1:
            device = self.model.device
            self.reorder(torch.arange(self.rows, device=device).repeat_interleave(times))
