"""Captured decoding steps: when a step is captured, when a capture is reused, and when capture is impossible."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.generation import fast
from anyformer.generation.stepper import Stepper
from anyformer.parts.position.rotary import DynamicScaling, Rope
from small import close
from writers import decoder

SIZES = {
    "width": 16, "decoder.depth": 1, "embedding.tokens.vocab_size": 40, "head.vocab_size": 40,
    "decoder.layers.attention.op.num_heads": 2, "decoder.layers.attention.op.num_kv_heads": 1,
    "decoder.layers.attention.op.head_width": 8, "decoder.layers.feedforward.op.width": 24,
}  # fmt: skip


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(fast, "BACKEND", "eager")
    return af.build(af.override(af.spec("llama3.2-1b"), SIZES), seed=3).eval()


@pytest.fixture
def model(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model whose steps are captured without tracing, which would take a second each and does not matter for the
    choice of a capture. The first test here and G5 (tests/families) do trace."""
    monkeypatch.setattr(torch, "compile", lambda step, **options: step)
    return compiled


def prompt(seed: int = 0, rows: int = 2, length: int = 5) -> Tensor:
    return torch.randint(0, 40, (rows, length), generator=torch.Generator().manual_seed(seed))


def both(model: Any, ids: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    options = {"max_new_tokens": 12, "eos_token_id": [], **options}
    return af.generate(model, ids, **options), af.generate(model, ids, compile=True, **options)


def test_texts_of_about_one_length_share_a_recording(compiled: Any) -> None:
    model = compiled
    for seed, length in ((0, 5), (1, 5), (2, 9)):
        assert torch.equal(*both(model, prompt(seed, length=length)))
    assert len(model.captures) == 1
    assert torch.equal(*both(model, prompt(3, rows=3)))
    assert torch.equal(*both(model, prompt(3), max_new_tokens=130))
    assert len(model.captures) == 3


def test_texts_end_where_they_end(model: Any) -> None:
    free = af.generate(model, prompt(), max_new_tokens=12, eos_token_id=[])
    ends = [int(free[0, 8]), int(free[1, 11])]
    plain, recorded = both(model, prompt(), eos_token_id=ends, pad_token_id=39)
    assert torch.equal(plain, recorded) and plain.shape[1] < free.shape[1]
    seen: list[list[int]] = []
    af.generate(
        model, prompt(), max_new_tokens=12, eos_token_id=ends, pad_token_id=39, compile=True,
        stream=lambda tokens: seen.append(tokens.tolist()),
    )  # fmt: skip
    assert torch.equal(torch.tensor(seen).T, plain[:, 5:])


def test_other_weights_are_another_recording(model: Any) -> None:
    both(model, prompt())
    with torch.no_grad():
        model.head.out.weight.add_(torch.randn(40, 16, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(*both(model, prompt()))
    assert len(model.captures) == 2


def test_a_model_made_in_inference_mode(model: Any) -> None:
    with torch.inference_mode():
        inference = copy.deepcopy(model)
        assert inference.head.out.weight.is_inference()
        assert torch.equal(*both(inference, prompt()))


def test_few_recordings_are_kept_and_none_is_copied(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "MAX_CAPTURES", 2)
    for rows in range(1, 5):
        assert torch.equal(*both(model, prompt(rows=rows)))
        assert len(model.captures) == min(rows, 2)
    monkeypatch.setattr(fast, "MIN_STATE_BYTES", 0)  # now the limit is the size of the weights
    assert torch.equal(*both(model, prompt(rows=7)))
    assert len(model.captures) == 1
    twin = copy.deepcopy(model)
    assert not twin.captures and torch.equal(*both(twin, prompt()))


def test_the_state_that_is_given_back_is_the_callers(model: Any) -> None:
    out = af.generate(model, prompt(), max_new_tokens=4, eos_token_id=[], compile=True, return_dict=True)
    held = {name: slot.tensors["k"].clone() for name, slot in out.past_key_values.stores.items()}
    both(model, prompt(1))  # overwrites the state of the capture
    for name, slot in out.past_key_values.stores.items():
        close(slot.tensors["k"], held[name])


@torch.no_grad()
def test_a_recorded_step_is_of_the_segment_that_the_prompt_ended_in() -> None:
    """Each row has its own segment, also when a second text uses the capture."""
    captured, tokens = None, torch.tensor([7, 8])
    for kinds in ([[5, 5, 6], [5, 5, 7]], [[5, 8, 9], [5, 5, 5]]):
        stepper = Stepper(decoder(), {"token_type_ids": torch.tensor(kinds)}, use_cache=True)
        stepper.begin(prompt(length=3), None)
        captured = captured or fast.CapturedDecoder(stepper, 8, compiled=False)
        captured.begin(stepper)
        close(captured.read(tokens), stepper.step(tokens), 1e-5)


def test_what_cannot_be_recorded_says_why(model: Any) -> None:
    for options, why in (
        ({"use_cache": False}, "use_cache"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "hidden states"),
        ({"past_key_values": model.new_state(2, capacity=40)}, "static"),
    ):
        with pytest.raises(ValueError, match=f"compile=True: .*{why}"):
            af.generate(model, prompt(), max_new_tokens=3, eos_token_id=[], compile=True, **options)
    layer = model.decoder.layers[0]
    for register in (layer.register_forward_hook, layer.register_forward_pre_hook):
        handle = register(lambda *args: None)
        with pytest.raises(ValueError, match="compile=True: .*hook"):
            both(model, prompt())
        handle.remove()
    assert torch.equal(*both(model, prompt()))


def test_positions_that_depend_on_the_length_are_not_recorded(model: Any) -> None:
    """A capture contains one table of sinusoids and one set of rotary angles, but the table grows for longer texts and
    dynamic rotary angles change."""
    turning = {"decoder.layers.attention.op.position": Rope(scaling=DynamicScaling(factor=2.0, length=8))}
    assert fast.model_obstacle(model, 1000) is None
    dynamic = af.build(af.override(model.spec, turning), device="meta")
    assert "dynamic rotary positions" in (fast.model_obstacle(dynamic, 8) or "")
    table = af.build(
        af.override(model.spec, {"embedding.position": {"kind": "Sinusoidal", "length": 8}}), device="meta"
    )
    assert fast.model_obstacle(table, 8) is None
    assert "longer than the model's table of positions" in (fast.model_obstacle(table, 9) or "")


def test_nan_is_not_written_silently(model: Any) -> None:
    half = model.to(torch.bfloat16)
    ids = prompt()
    state = af.generate(half, ids, max_new_tokens=3, eos_token_id=[], return_dict=True).past_key_values
    with torch.no_grad():
        half.decoder.layers[0].feedforward.op.down.weight.fill_(float("nan"))
    longer = torch.cat((ids, ids), dim=1)[:, : int(state.length) + 1]
    for slot in state.stores.values():
        assert not slot.tensors["k"].isnan().any()
    with pytest.raises(FloatingPointError, match=r"decoder\.layers\.0\.feedforward"):
        af.generate(half, longer, past_key_values=state, max_new_tokens=3, eos_token_id=[], compile=True)


@torch.no_grad()
def test_a_prompt_is_read_with_pads_behind_it(model: Any) -> None:
    """The steps of a captured prompt, run without capture, give the scores and state of the plain path."""
    ids, mask = prompt(rows=3, length=7), torch.ones(3, 7, dtype=torch.long)
    mask[0, :4] = 0  # row 0 is padded on the left
    af.generate(model, prompt(rows=3), max_new_tokens=4, compile=True)
    (captured,) = model.captures.values()
    reader = object.__new__(fast.CapturedPrompt)
    reader.model, reader.prefix, reader.state = model, "", captured.state
    reader.broken = captured.buffers.broken
    reader.ids, reader.lengths = torch.zeros(3, 16, dtype=torch.long), torch.ones(3, dtype=torch.long)
    reader.graph = SimpleNamespace(replay=lambda: setattr(reader, "scores", reader.forward()))
    for given in (mask, None):
        plain = Stepper(model, {}, use_cache=True)
        expected = plain.begin(ids, given)
        close(reader.read(ids, given), expected)
        assert captured.state.past.tolist() == [3 if given is not None else 7, 7, 7]
        captured.buffers.count.zero_()
        close(captured.read(ids[:, 0]), plain.step(ids[:, 0]))  # the next token continues the prompt
    assert not captured.buffers.broken
    model.embedding.tokens.weight[39] = float("nan")
    ids = ids.clamp(max=38)
    ids[1, 3] = 39  # in one row of three
    reader.read(ids, None)
    assert captured.buffers.broken


def test_a_model_explains_how_it_wrote(model: Any) -> None:
    assert model.explain() == "nothing was run yet"
    af.generate(model, prompt(), max_new_tokens=4)
    assert model.explain() == "decoding: one call per step: on cpu, use compile=True to compile the step"
    af.generate(model, prompt(), max_new_tokens=4, compile=False)
    assert model.explain() == "decoding: one call per step: compile=False"
    af.generate(model, prompt(), max_new_tokens=4, compile=True)
    assert model.explain() == "decoding: compiled"


@pytest.mark.parametrize("size", [1, 40, 64, 65, 1000])
def test_the_likeliest_token_is_found_in_pieces(size: int) -> None:
    scores = torch.randn(200, size, generator=torch.Generator().manual_seed(0)) - 9
    best, token = fast.highest(scores)
    assert torch.equal(best, scores.amax(-1)) and torch.equal(token, scores.argmax(-1))
    scores[1, -1] = float("nan")
    assert fast.highest(scores)[0].isnan().nonzero().tolist() == [[1]]


@torch.no_grad()
def test_a_prompt_is_not_read_by_a_graph_that_does_not_fit_it(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph would not notice ids outside the vocabulary, hooks and positions beyond the last one."""
    reads: list[int] = []
    monkeypatch.setattr(fast.CapturedDecoder, "reads_prompts", lambda captured, tokens: True)
    monkeypatch.setattr(
        fast.CapturedDecoder, "read_prompt", lambda captured, ids, mask, bucket: reads.append(bucket) or ids
    )

    def read(length: int = 20, token: int = 1) -> Any:
        stepper = Stepper(model, {}, use_cache=True)
        return fast.read_prompt(stepper, torch.full((2, length), token), None, 24, 4, True)

    assert read() is None  # nothing is captured yet
    af.generate(model, prompt(), max_new_tokens=19, compile=True)
    assert read() is not None and reads == [32]
    with pytest.raises(ValueError, match="token id 40 .* 40"):
        read(token=40)
    monkeypatch.setattr(fast, "position_limit", lambda spec: 24)
    assert read() is not None and reads == [32, 24]
    hook = model.decoder.register_forward_hook(lambda *args: None)
    assert read() is None
    hook.remove()
    assert read() is not None
