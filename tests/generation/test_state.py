"""States: ring buffers, sizes, truncation, and the sizes that `af.count` predicts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.kernels.batch_rows import grid, lines
from anyformer.parts.attention.attention import Attention
from anyformer.parts.mask import CAUSAL, Causal, Mask, Window
from anyformer.parts.position.rotary import Rope
from anyformer.runtime.state import State
from anyformer.runtime.stores import Ring, axis, held_shape
from anyformer.specs.codec import override
from small import close
from writers import ids as words
from writers import pair

SMALL = {"width": 32, "embedding.tokens.vocab_size": 50, "head.vocab_size": 50, "decoder.depth": 2}


def small(mask: Mask = CAUSAL) -> Any:
    attention = Attention(num_heads=4, num_kv_heads=2, head_width=8, bias="", mask=mask, position=Rope())
    sizes = {"decoder.layers.attention.op": attention, "decoder.layers.feedforward.op.width": 48}
    return override(af.spec("llama3.2-1b"), {**SMALL, **sizes})


@pytest.fixture(scope="module")
def windowed() -> Any:
    return af.build(small(Causal() & Window(size=5)), seed=1).eval()


@pytest.mark.parametrize("chunks", [(1,) * 17, (4,) + (1,) * 13, (17,), (3, 7, 2, 5), (9, 1, 6, 1)], ids=str)
@pytest.mark.parametrize("capacity", [None, 20, 5, 4], ids=["growing", "ring", "window", "below"])
@torch.no_grad()
def test_a_window_in_any_state_and_any_chunks(windowed: Any, chunks: tuple[int, ...], capacity: int | None) -> None:
    ids = torch.randint(0, 50, (2, 17), generator=torch.Generator().manual_seed(0))
    length = 17 if capacity not in (5, 4) else capacity
    expected = windowed(input_ids=ids[:, :length], use_cache=False).logits
    state, start, found = windowed.new_state(2, capacity=capacity), 0, []
    for size in chunks:
        piece = ids[:, start : min(start + size, length)]
        if piece.shape[1]:
            found.append(windowed(input_ids=piece, past_key_values=state).logits)
        start += size
    close(torch.cat(found, dim=1), expected, 1e-5)


@torch.no_grad()
def test_a_window_changes_what_is_seen(windowed: Any) -> None:
    ids = torch.randint(0, 50, (1, 12), generator=torch.Generator().manual_seed(0))
    full = af.build(small(), seed=1).eval()
    a, b = windowed(input_ids=ids).logits, full(input_ids=ids).logits
    close(a[:, :5], b[:, :5], 1e-5)
    assert not torch.allclose(a[:, 5:], b[:, 5:])


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"penalty_alpha": 0.5, "top_k": 3}, {"prompt_lookup_num_tokens": 3}]
)
def test_windows_write_the_same_text(windowed: Any, options: dict[str, Any]) -> None:
    ids = torch.randint(1, 50, (2, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    given = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 12, "eos_token_id": [], **options}
    expected = af.generate(windowed, **given, use_cache=False)
    assert torch.equal(af.generate(windowed, **given), expected)
    state = windowed.new_state(2, capacity=20)
    assert all(isinstance(store, Ring) for store in state.stores.values())
    assert torch.equal(af.generate(windowed, **given, past_key_values=state), expected)


def held(model: Any, length: int) -> int:
    state = model.new_state()
    with torch.no_grad():
        for start in range(0, length, 8):
            model(input_ids=torch.ones(1, min(8, length - start), dtype=torch.long), past_key_values=state)
    return state.nbytes


def test_windows_and_recurrences_do_not_grow(windowed: Any) -> None:
    assert held(windowed, 16) == held(windowed, 64)
    assert windowed.new_state(1, capacity=1000).nbytes == windowed.new_state(1, capacity=5).nbytes
    spec = override(af.spec("mamba-130m"), {**SMALL, "decoder.layers.mixer.op.width": 64})
    mamba = af.build(spec).eval()
    assert held(mamba, 8) == held(mamba, 64) == af.count(spec).state(1, 64)
    grown = af.build(small()).eval()
    assert held(grown, 64) == 4 * held(grown, 16)


def test_count_predicts_a_long_state() -> None:
    """32k tokens of Llama-3.2-1B in bf16: 2 x 16 layers x 8 heads x 64 x 32,768 x 2 bytes = 1 GiB."""
    spec = af.spec("llama3.2-1b")
    model = af.build(spec, device="meta", dtype=torch.bfloat16)
    state = State.allocate(model, 1, capacity=32768)
    assert all(tensor.is_meta for slot in state.stores.values() for tensor in slot.tensors.values())
    counted = af.count(spec)
    assert abs(counted.state(1, 32768, torch.bfloat16) / state.nbytes - 1) < 0.02
    assert counted.state(1, 32768, torch.bfloat16) == 2**30
    assert counted.state(4, 32768) == 8 * 2**30


def test_count_predicts_windows_and_memories(windowed: Any) -> None:
    counted = af.count(windowed.spec)
    assert counted.state(1, 3) == held(windowed, 3)
    assert counted.state(1, 64) == held(windowed, 64)
    pair = af.build(override(af.spec("t5-small"), {"encoder.depth": 1, "decoder.depth": 1})).eval()
    out = af.generate(
        pair, input_ids=torch.ones(2, 9, dtype=torch.long), max_new_tokens=4, eos_token_id=[], return_dict=True
    )
    assert out.past_key_values.nbytes == af.count(pair.spec).state(2, 4, source_length=9)


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)], ids=["a number", "a vector", "heads"])
def test_an_index_writes_where_lines_do(shape: tuple[int, ...]) -> None:
    """`grid`, which compiled code uses to write, selects the same entries as `lines`, with columns shared by all rows
    or separate columns per row."""
    size = held_shape(shape, 2, 5)
    for columns in (torch.tensor([4, 0]), torch.tensor([[1, 3], [4, 0]])):
        held, other, new = torch.zeros(size), torch.zeros(size), torch.randn(held_shape(shape, 2, 2))
        dim = axis(shape)
        held.index_put_(grid(held.shape[: dim + 1], columns), new)
        other.flatten(0, dim).index_copy_(0, lines(other.shape[: dim + 1], columns), new.flatten(0, dim))
        assert torch.equal(held, other) and held.count_nonzero() == new.numel()


def test_truncate_says_what_it_cannot(windowed: Any) -> None:
    model = af.build(small()).eval()
    state = model.new_state()
    with torch.no_grad():
        model(input_ids=torch.ones(1, 6, dtype=torch.long), past_key_values=state)
    for length in (-1, 7):
        with pytest.raises(ValueError, match=f"cannot be truncated to {length}"):
            state.truncate(length)
    with pytest.raises(ValueError, match="only growing states"):
        State.concatenate([state, model.new_state(1, capacity=9)])
    with pytest.raises(ValueError, match="empty state"):
        State.concatenate([state, model.new_state()])


@torch.no_grad()
def test_rows_of_one_length_need_no_mask_after_they_are_joined() -> None:
    """Without a mask, faster kernels can be used."""
    model = af.build(small()).eval()
    states = [model.new_state() for _ in range(3)]
    for state, length in zip(states, (4, 4, 3), strict=True):
        model(input_ids=torch.ones(1, length, dtype=torch.long), past_key_values=state)
    assert State.concatenate(states[:2]).is_token is None
    assert State.concatenate(states).is_token.tolist() == [[True] * 4, [True] * 4, [False] + [True] * 3]


@torch.no_grad()
def test_a_full_state_takes_no_more() -> None:
    """Even if a different row has room left."""
    model = af.build(small(), seed=2).eval()
    grown, state = model.new_state(), model.new_state(2, capacity=6)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    model(input_ids=torch.ones(2, 5, dtype=torch.long), attention_mask=mask, past_key_values=grown)
    state.adopt(grown)
    model(input_ids=torch.ones(2, 1, dtype=torch.long), past_key_values=state)
    assert state.lengths.tolist() == [4, 6]
    with pytest.raises(ValueError, match="room for 6 tokens: 1 after 6"):
        model(input_ids=torch.ones(2, 1, dtype=torch.long), past_key_values=state)
    with pytest.raises(ValueError, match="cannot be truncated to 1"):
        state.truncate(1)


@torch.no_grad()
def test_a_static_state_is_cut_by_its_length() -> None:
    model = af.build(small(), seed=2).eval()
    ids = torch.randint(0, 50, (2, 9))
    expected = model(input_ids=ids, use_cache=False).logits
    state = model.new_state(2, capacity=12)
    model(input_ids=ids[:, :5], past_key_values=state)
    fork = state.fork()
    model(input_ids=torch.zeros(2, 6, dtype=torch.long), past_key_values=state)
    state.truncate(5)
    for each in (state, fork):
        close(model(input_ids=ids[:, 5:], past_key_values=each).logits, expected[:, 5:], 1e-5)


@torch.no_grad()
def test_the_state_of_a_pair_is_cut_back() -> None:
    """Truncation keeps the cross-attention keys and values."""
    model, source, text = pair(), words(2, 5), words(2, 7, seed=1)
    state = model.new_state()
    model(input_ids=source, decoder_input_ids=text[:, :6], past_key_values=state)
    assert state.can_truncate
    state.truncate(4)
    expected = model(input_ids=source, decoder_input_ids=text, use_cache=False).logits
    close(model(decoder_input_ids=text[:, 4:], past_key_values=state).logits, expected[:, 4:], 1e-5)


@pytest.mark.parametrize("capacity", [None, 16], ids=["growing", "static"])
@torch.no_grad()
def test_a_padded_state_is_cut_back(capacity: int | None) -> None:
    """Read rows padded on the left, truncate to each earlier length and continue with different tokens."""
    model = af.build(small(), seed=2).eval()
    generator = torch.Generator().manual_seed(1)
    ids, others = (torch.randint(1, 50, (3, 9), generator=generator) for _ in "ab")
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[0, :3] = mask[2, :1] = 0

    def read(state: State, tokens: Tensor, start: int, end: int) -> Tensor:
        row = torch.nn.functional.pad(mask[:, :end], (0, 0 if capacity is None else capacity - end), value=1)
        return model(input_ids=tokens[:, start:end], attention_mask=row, past_key_values=state).logits

    for length in (4, 5, 7):
        state = model.new_state(3, capacity=capacity)
        read(state, ids, 0, 8)
        state.truncate(length)
        assert int(state.length) == length
        if capacity is None:
            assert torch.equal(state.is_token, mask[:, :length].bool())  # type: ignore[arg-type]
        text = torch.cat((ids[:, :length], others[:, length:]), dim=1)
        expected = model(input_ids=text, attention_mask=mask, use_cache=False).logits
        if capacity is None:  # the state knows which tokens are padding
            found = model(input_ids=text[:, length:], past_key_values=state).logits
        else:
            found = read(state, text, length, 9)
        close(found, expected[:, length:], 1e-5)


def test_dtype_of_a_state() -> None:
    model = af.build(small(), dtype=torch.bfloat16).eval()
    state: Any = model.new_state(2, capacity=7)
    tensors: list[Tensor] = [tensor for store in state.stores.values() for tensor in store.tensors.values()]
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors)
    assert state.nbytes == af.count(model.spec).state(2, 7, torch.bfloat16)
