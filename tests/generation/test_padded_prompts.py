"""Prompts of different lengths in one batch, padded on either side, are continued as in separate calls (N3, N4): no
state of a mixer contains padding.

B prompts, T tokens, V vocabulary.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.runtime.state import State
from anyformer.specs.part import Part
from small import close
from swaps import SLOTS, V, part_of, plain, stirred, swapped

OP, POSITION, ABSOLUTE = "decoder.layers.attention.op", "decoder.layers.attention.op.position", "embedding.position"
ROUTER = "decoder.layers.feedforward.op.router"
SWAPS = [
    (slot, kind) for slot in (OP, f"{OP}.mask", f"{OP}.features", POSITION, ABSOLUTE, "embedding", ROUTER)
    for kind in SLOTS[slot]
]  # fmt: skip
WINDOW = {"kind": "All", "masks": [{"kind": "Causal"}, {"kind": "Window", "size": 3}]}
SHIFTED = {"kind": "Learned", "length": 32, "offset": 1}
# besides the swaps: windows of a few tokens, with every type of position
MORE: dict[str, dict[str, Any]] = {
    "window": {f"{OP}.mask": WINDOW}, "window, learned": {f"{OP}.mask": WINDOW, ABSOLUTE: part_of(ABSOLUTE, "Learned")},
    **{f"window, {kind}": {f"{OP}.mask": WINDOW, POSITION: part_of(POSITION, kind)} for kind in SLOTS[POSITION]
       if part_of(POSITION, kind).sees != "all"},
    "memory alone": {OP: part_of(OP, "RecurrentAttention").replace(compressed=0, kept=3)},
    "blocks, rotary": {OP: part_of(OP, "BlockAttention").replace(position=part_of(POSITION, "Rope"))},
    "real tokens are counted": {"embedding.numbering": {"kind": "RealTokens"}, ABSOLUTE: SHIFTED},
    "a token is not counted": {"embedding.numbering": {"kind": "WithoutToken", "token": 0}, ABSOLUTE: SHIFTED},
}  # fmt: skip
LENGTHS, WIDEST, NEW = (9, 2, 5), 11, 7  # every prompt has at least one pad


def writer(slot: str, kind: str) -> Any:
    """Return a causal model with this kind, or with the proposed replacement if the kind sees the future, or None."""
    if kind == "BlockSparseAttention":  # with the default block size, it only writes short texts
        return af.override(plain(), {OP: part_of(OP, kind).replace(block_size=32, mask=Part.kinds["Causal"]())})
    try:
        return swapped(slot, kind)
    except ValueError as error:
        address, _, rest = str(error).partition(": ")
        proposed = rest.partition("; ")[2].removesuffix(" does not")
        if "..." in proposed:
            return None
        path, found = address.removeprefix(slot).removeprefix("."), eval(proposed, dict(Part.kinds))
        return af.override(plain(), {slot: af.override(part_of(slot, kind), {path: found}) if path else found})


class Prompts:
    """Texts of different lengths and their logits from separate calls."""

    @torch.no_grad()
    def __init__(self, model: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        self.model = model
        self.texts = [torch.randint(1, V, (1, n + NEW), generator=generator) for n in LENGTHS]
        self.alone = [model(input_ids=text, use_cache=False).logits[0] for text in self.texts]

    @torch.no_grad()
    def read(self, side: str, state: State) -> Tensor:
        """Read all prompts in one batch, compare the logits, and return the mask (B, T)."""
        mask = torch.stack([torch.arange(WIDEST) < n for n in LENGTHS])
        mask = mask.flip(1) if side == "left" else mask
        ids = torch.zeros(mask.shape, dtype=torch.long)
        for row, (text, n) in enumerate(zip(self.texts, LENGTHS, strict=True)):
            ids[row, mask[row]] = text[0, :n]
        scores = self.model(input_ids=ids, attention_mask=mask.long(), past_key_values=state).logits
        for row, (alone, n) in enumerate(zip(self.alone, LENGTHS, strict=True)):
            close(scores[row, mask[row]], alone[:n], 1e-5)
        return mask

    @torch.no_grad()
    def go_on(self, state: State, start: int, end: int, **given: Tensor) -> None:
        """Read the next tokens of every text and compare the logits."""
        more = torch.cat([text[:, n + start : n + end] for text, n in zip(self.texts, LENGTHS, strict=True)])
        scores = self.model(input_ids=more, past_key_values=state, **given).logits
        alone = [row[n + start : n + end] for row, n in zip(self.alone, LENGTHS, strict=True)]
        close(scores, torch.stack(alone), 1e-5)


@pytest.mark.parametrize(("slot", "kind"), [
    *(pytest.param(slot, kind, marks=pytest.mark.slow if slot in (POSITION, ABSOLUTE, ROUTER) else ())
      for slot, kind in SWAPS),  # MORE contains every position with a window
    *((None, name) for name in MORE),
])  # fmt: skip
def test_a_batch_of_prompts_goes_on_as_each_alone(slot: str | None, kind: str) -> None:
    """Token by token with the mask of the whole row, and several tokens at once without a mask; growing and static."""
    spec = writer(slot, kind) if slot else af.override(plain(), MORE[kind])
    model = None if spec is None else stirred(spec).eval()
    if model is None or not model.remembers:
        return  # there is no cache
    prompts = Prompts(model)
    for side in ("right", "left"):
        state = model.new_state()
        mask = prompts.read(side, state)
        static = model.new_state(len(LENGTHS), capacity=24)
        static.adopt(state)
        assert state.lengths.tolist() == static.lengths.tolist() == list(LENGTHS) and static.is_token is None
        other = state.fork()
        for t in range(NEW):
            row = torch.cat((mask, mask.new_ones(len(LENGTHS), t + 1)), dim=1)
            prompts.go_on(state, t, t + 1, attention_mask=row.long())
        for start, end in itertools.pairwise((0, 2, 3, NEW)):
            prompts.go_on(other, start, end)
            prompts.go_on(static, start, end)


def model_with_a_window() -> Any:
    return stirred(af.override(plain(), MORE["window, Rope"])).eval()


@torch.no_grad()
def test_pieces_of_prompts_that_end_in_pads() -> None:
    """Each piece of a row may end in padding: a text continues after its last real token."""
    model = model_with_a_window()
    prompts, state = Prompts(model), model.new_state()
    rows = [text[0].tolist() for text in prompts.texts]
    cuts = [(0, 3, 5, 9), (0, 1, 1, 2), (0, 3, 4, 5)]  # of the prompts
    for piece in range(3):
        parts = [row[cut[piece] : cut[piece + 1]] for row, cut in zip(rows, cuts, strict=True)]
        ids = torch.tensor([part + [0] * (5 - len(part)) for part in parts])
        mask = torch.tensor([[1] * len(part) + [0] * (5 - len(part)) for part in parts])
        model(input_ids=ids, attention_mask=mask, past_key_values=state)
    assert state.length == 15 and state.lengths.tolist() == list(LENGTHS)
    state.trim(15 - max(LENGTHS))
    prompts.go_on(state.fork(), 0, 1)
    state = State.concatenate([state, state.fork()])
    state.reorder(torch.tensor([3, 1, 5]))
    prompts.go_on(state, 0, NEW)


@torch.no_grad()
def test_what_a_mask_says_of_a_past_that_was_moved() -> None:
    """A mask may describe the past as the caller padded it or as the state stores it. A mask with different real tokens
    is refused, because the state no longer has their columns."""
    model = model_with_a_window()
    prompts, state = Prompts(model), model.new_state()
    mask = prompts.read("right", state)
    for row in (mask, mask.flip(1)):
        prompts.go_on(state.fork(), 0, 2, attention_mask=torch.cat((row, row.new_ones(len(row), 2)), dim=1))
    left = model.new_state()
    mixed = torch.stack((mask[0], prompts.read("left", left)[1], mask[2]))
    joined = State.concatenate([state, left])
    joined.reorder(torch.tensor([0, 4, 2]))  # two rows were moved, one was not
    prompts.go_on(joined, 0, 2, attention_mask=torch.cat((mixed, mixed.new_ones(len(mixed), 2)), dim=1))
    other = torch.cat((mask, mask.new_ones(len(mask), 1)), dim=1).long()
    other[0, 0] = 0
    with pytest.raises(ValueError, match="^attention_mask .*cached mask.*new tokens"):
        prompts.go_on(state, 0, 1, attention_mask=other)


@torch.no_grad()
def test_writing_goes_on_from_a_padded_past() -> None:
    """Padding between real tokens of a prompt is ignored. A past that is not the start of the prompt is refused."""
    model = model_with_a_window()
    prompts, state = Prompts(model), model.new_state()
    mask = prompts.read("right", state)
    ids = torch.zeros(len(LENGTHS), WIDEST + 2, dtype=torch.long)
    for row, (text, n) in enumerate(zip(prompts.texts, LENGTHS, strict=True)):
        ids[row, :n], ids[row, WIDEST:] = text[0, :n], text[0, n : n + 2]
    whole: Any = torch.cat((mask, mask.new_ones(len(LENGTHS), 2)), dim=1).long()
    how: dict[str, Any] = {"max_new_tokens": 3, "eos_token_id": [], "do_sample": False}
    found = af.generate(model, input_ids=ids, attention_mask=whole, past_key_values=state.fork(), **how)
    for row, (text, n) in enumerate(zip(prompts.texts, LENGTHS, strict=True)):
        alone = af.generate(model, input_ids=text[:, : n + 2], **how)
        assert found[row, -3:].tolist() == alone[0, -3:].tolist()
    whole[1, -1] = 0
    with pytest.raises(ValueError, match="^past_key_values has different padding"):
        af.generate(model, input_ids=ids, attention_mask=whole, past_key_values=state, **how)


def test_pads_are_found_without_a_mask() -> None:
    """Each prompt is continued as in a separate call, even one that consists of padding."""
    model = model_with_a_window()
    how: dict[str, Any] = {"max_new_tokens": 4, "eos_token_id": [], "pad_token_id": 0}
    for prompts in ([[0, 0, 7, 8], [1, 2, 3, 4]], [[0, 0, 7, 8], [0, 0, 0, 0]], [[0, 0], [0, 0]]):
        found = af.generate(model, torch.tensor(prompts), **how)
        for row, prompt in zip(found, prompts, strict=True):
            alone = af.generate(model, torch.tensor([[token for token in prompt if token] or prompt]), **how)
            assert row[-4:].tolist() == alone[0, -4:].tolist()


@torch.no_grad()
def test_a_static_state_takes_no_pads_behind_a_prompt() -> None:
    model = model_with_a_window()
    prompts, state = Prompts(model), model.new_state(len(LENGTHS), capacity=24)
    ids, mask = torch.ones(3, WIDEST, dtype=torch.long), torch.ones(3, 24, dtype=torch.long)
    mask[1, 4:WIDEST] = 0
    with pytest.raises(ValueError, match="^attention_mask: a row ends in padding, .* pad on the left$"):
        model(input_ids=ids, attention_mask=mask, past_key_values=state)
    grown = model.new_state()
    prompts.read("right", grown)
    state.adopt(grown)
    prompts.go_on(state, 0, NEW)


@pytest.mark.parametrize("varies", ["input_ids", "attention_mask"])
@torch.no_grad()
def test_a_compiled_model_reads_rows_whose_length_varies(varies: str) -> None:
    """Either length may be dynamic for the compiler while the other is static."""
    model = stirred(plain()).eval()
    torch._dynamo.reset()
    given = {"input_ids": torch.arange(12).view(2, 6) % V, "attention_mask": torch.ones(2, 6, dtype=torch.long)}
    given["attention_mask"][0, -1] = 0
    torch._dynamo.maybe_mark_dynamic(given[varies], 1)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    close(compiled(**given).logits, model(**given).logits, 1e-6)


@pytest.mark.slow
@torch.no_grad()
def test_pads_behind_a_prompt_in_a_compiled_model() -> None:
    """A compiled model cannot read the values of a mask, so it always moves rows, with or without padding."""
    model = stirred(af.override(plain(), {**MORE["window"], "decoder.depth": 1})).eval()
    prompts, state = Prompts(model), model.new_state()
    prompts.model = torch.compile(model, backend="eager", fullgraph=True)
    mask = prompts.read("right", state)
    prompts.go_on(state, 0, 1, attention_mask=torch.cat((mask, mask.new_ones(len(mask), 1)), dim=1))
