"""Rows of a static state with different lengths, without padding: each row is continued as in a separate call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from catalogue import close, every_case, is_encoder_decoder, ours
from torch import Tensor

import anyformer as af
from anyformer import families
from anyformer.parts.embedding.global_text import GlobalTextEmbedding
from anyformer.parts.embedding.text import Tokens
from anyformer.parts.mask import CAUSAL, Mask, Window
from anyformer.parts.position.bias import BucketedBias, DistanceBias
from anyformer.parts.position.relative import RelativeSinusoids
from anyformer.runtime.state import State

LENGTHS, NEW, CAPACITY = (9, 2, 5), 7, 20
SMALL = {"width": 24, "embedding.tokens.vocab_size": 99, "head.vocab_size": 99, "decoder.depth": 2,
         "decoder.layers.feedforward.op.width": 32}  # fmt: skip
# one model per type of state, and per type of position or mask
CASES = (
    "GPT2LMHeadModel", "MixtralForCausalLM-window", "DeepseekV2ForCausalLM", "T5ForConditionalGeneration",
    "MambaForCausalLM-one-tap", "Mamba2ForCausalLM", "RobertaForCausalLM", "RwkvForCausalLM", "BloomForCausalLM",
    "SwitchTransformersForConditionalGeneration", "OPTForCausalLM", "MarianForCausalLM",
)  # fmt: skip
WINDOW = CAUSAL & Window(size=4)
POSITIONS: dict[str, tuple[Any, Mask]] = {
    "relative": (RelativeSinusoids(num_heads=4), CAUSAL), "relative, window": (RelativeSinusoids(num_heads=4), WINDOW),
    "distances": (DistanceBias(num_heads=4, before=6), WINDOW), "buckets": (BucketedBias(num_heads=4), WINDOW),
}  # fmt: skip


def model_of(name: str) -> Any:
    if name == "dmca":
        sizes = {"vocab_size": 99, "d_model": 24, "num_heads": 3, "d_ff": 40, "block_size": 5, "stride": 2}
        return af.build(families.find("dmca").read(sizes), seed=1).eval()
    if name in POSITIONS:
        op = {"num_heads": 4, **dict(zip(("position", "mask"), POSITIONS[name], strict=True))}
        changes = {f"decoder.layers.attention.op.{field}": value for field, value in op.items()}
        return af.build(af.override(af.spec("gpt2"), {**SMALL, **changes}), seed=1).eval()
    if name == "global tokens":
        changes = {"embedding": GlobalTextEmbedding(tokens=Tokens(vocab_size=99), global_tokens="first")}
        sizes = {path: size for path, size in SMALL.items() if not path.startswith("embedding")}
        return af.build(af.override(af.spec("gpt2"), {**sizes, **changes}), seed=1).eval()
    return ours(next(case for case in every_case() if case.id == name))


class Texts:
    """A model, texts of different lengths and, for an encoder-decoder, their sources."""

    def __init__(self, name: str) -> None:
        self.model = model_of(name)
        self.pair = is_encoder_decoder(self.model.spec)
        generator = torch.Generator().manual_seed(0)
        self.ids = [torch.randint(5, 90, (1, n + NEW), generator=generator) for n in LENGTHS]
        self.sources = [torch.randint(5, 90, (1, n), generator=generator) for n in (4, 7, 6)]

    def inputs(self, row: int, ids: Tensor) -> dict[str, Tensor]:
        return {"decoder_input_ids": ids, "input_ids": self.sources[row]} if self.pair else {"input_ids": ids}

    def alone(self) -> list[Tensor]:
        """Scores (T, V) of each whole text."""
        return [self.model(**self.inputs(row, ids), use_cache=False).logits[0] for row, ids in enumerate(self.ids)]

    def read(self) -> State:
        """Read each prompt separately; return a growing state with one row per prompt."""
        states = [self.model.new_state() for _ in LENGTHS]
        for row, (state, n) in enumerate(zip(states, LENGTHS, strict=True)):
            self.model(**self.inputs(row, self.ids[row][:, :n]), past_key_values=state)
        return State.concatenate(states)

    def go_on(self, state: State, start: int, count: int, order: Sequence[int] = (0, 1, 2)) -> Tensor:
        """Read `count` new tokens of each text; return the scores (B, count, V)."""
        ids = torch.cat([self.ids[i][:, LENGTHS[i] + start : LENGTHS[i] + start + count] for i in order])
        return self.model(**{"decoder_input_ids" if self.pair else "input_ids": ids}, past_key_values=state).logits


def expected(alone: list[Tensor], start: int, count: int) -> Tensor:
    return torch.stack([row[n + start : n + start + count] for row, n in zip(alone, LENGTHS, strict=True)])


@pytest.mark.parametrize("name", [*CASES, *POSITIONS, "dmca", "global tokens"])
@torch.no_grad()
def test_each_row_goes_on_from_its_own_length(name: str) -> None:
    """One token at a time and several at once, with reordered rows, and after conversion to a growing state."""
    texts = Texts(name)
    alone, state = texts.alone(), texts.model.new_state(len(LENGTHS), capacity=CAPACITY)
    state.adopt(texts.read())
    assert state.lengths.tolist() == list(LENGTHS) and state.is_token is None
    for start, count in ((0, 1), (1, 1), (2, 3), (5, 1)):
        close(texts.go_on(state, start, count), expected(alone, start, count), 1e-5)
    assert state.lengths.tolist() == [n + 6 for n in LENGTHS] and state.length == max(LENGTHS) + 6
    order, fork, back = [2, 0, 1], state.fork(), state.to_growing()
    state.reorder(torch.tensor(order))
    close(texts.go_on(state, 6, 1, order), expected(alone, 6, 1)[order], 1e-5)
    for each in (fork, back):
        close(texts.go_on(each, 6, 1), expected(alone, 6, 1), 1e-5)
    assert back.lengths.tolist() == [n + 7 for n in LENGTHS]


@torch.no_grad()
def test_as_many_tokens_of_each_row_are_forgotten() -> None:
    texts = Texts("GPT2LMHeadModel")
    alone, state = texts.alone(), texts.model.new_state(len(LENGTHS), capacity=CAPACITY)
    state.adopt(texts.read())
    texts.go_on(state, 2, 3)  # wrong tokens, removed below
    state.truncate(state.length - 3)
    assert state.lengths.tolist() == list(LENGTHS)
    close(texts.go_on(state, 0, 2), expected(alone, 0, 2), 1e-5)


@torch.no_grad()
def test_pads_between_tokens_are_remembered() -> None:
    """Padding on the left is dropped; padding between tokens is kept until it is truncated."""
    model = Texts("GPT2LMHeadModel").model
    ids = torch.randint(5, 90, (2, 9), generator=torch.Generator().manual_seed(3))
    mask = torch.tensor([[0, 0, 1, 1, 0, 1, 1, 1, 1], [1] * 9])
    whole = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    grown, state = model.new_state(), model.new_state(2, capacity=CAPACITY)
    model(input_ids=ids[:, :6], attention_mask=mask[:, :6], past_key_values=grown)
    state.adopt(grown)
    assert state.lengths.tolist() == [4, 6] and state.is_token is not None and int((~state.is_token).sum()) == 1
    model(input_ids=ids[:, :2], past_key_values=state)
    state.truncate(6)
    for each in (state.to_growing(), state.to_growing(7), state):
        close(model(input_ids=ids[:, 6:8], past_key_values=each).logits, whole[:, 6:8], 1e-5)
    close(model(input_ids=ids[:, 8:], past_key_values=state).logits, whole[:, 8:], 1e-5)
    state.truncate(4)  # removes the padding in row 0
    assert state.lengths.tolist() == [2, 4] and state.is_token.all()
    state.truncate(3)
    assert state.lengths.tolist() == [1, 3]
    for row, begun in ((0, ids[:1, 2:3]), (1, ids[1:, :3])):
        text = torch.cat((begun, ids[row : row + 1, :3]), dim=1)
        after = model(input_ids=ids[:, :3], past_key_values=state.fork()).logits[row]
        close(after, model(input_ids=text, use_cache=False).logits[0, -3:], 1e-5)
