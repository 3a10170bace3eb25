"""T-DMCA: no class is published. Oracles are the formula written out, and plain attention if nothing is compressed. The
lines of BEHAVIOUR.md that the catalogue-wide suite checks for other decoders are checked here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from catalogue import DECODER, all_hold, close, holds_in_half_precision
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from unpublished import description, text

import anyformer as af
from anyformer import families
from anyformer.parts.attention.attention import Attention
from anyformer.parts.mask import CAUSAL, SameBlock
from anyformer.runtime.state import State

KINDS: list[dict[str, Any]] = [
    {}, {"kernel_size": 4, "stride": 2, "block_size": 7}, {"kernel_size": 2, "stride": 3, "layers": "MML"},
    {"kernel_size": 1, "stride": 1, "block_size": 1, "activation_function": "gelu", "tie_word_embeddings": False},
    {"layers": "M", "kernel_size": 5, "stride": 1}, {"layers": "LL", "block_size": 64, "attention_dropout": 0.1},
]  # fmt: skip
over_kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())) or "paper")
KERNELS = ("eager", "sdpa")


def model(seed: int = 0, **more: Any) -> Any:
    made = af.build(description("dmca", **more), seed=seed).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in made.named_parameters():  # no bias of 0 can hide a mistake
            if name.endswith("bias"):
                parameter.normal_(0, 0.2, generator=generator)
    return made


@torch.no_grad()
def run(made: Any, kernel: str = "auto", use_cache: bool = False, **inputs: Any) -> Tensor:
    made.kernel = kernel
    try:
        return made(**inputs, use_cache=use_cache).logits
    finally:
        made.kernel = "auto"


@pytest.mark.parametrize("kernel", KERNELS)
def test_with_nothing_left_out_it_is_plain_attention(kernel: str) -> None:
    """With kernel = stride = 1, identity convolutions and blocks as long as the text, it equals a plain decoder."""
    mine = model(kernel_size=1, stride=1, block_size=23)
    attention = Attention(num_heads=3, mask=CAUSAL)
    kinds = ("local", "compressed")
    plain = af.build(af.override(mine.spec, {f"decoder.layers.{k}.attention.op": attention for k in kinds})).eval()
    with torch.no_grad():
        for name, tensor in mine.state_dict().items():
            if ".short_" in name:
                tensor.copy_(torch.eye(24)[..., None] if name.endswith("weight") else torch.zeros(24))
        plain.load_state_dict({n: t for n, t in mine.state_dict().items() if ".short_" not in n})
    close(run(mine, kernel, input_ids=text(23)), run(plain, kernel, input_ids=text(23)))


@pytest.mark.parametrize(("kernel", "stride"), [(3, 3), (4, 2), (2, 3), (1, 1)])
def test_the_formula(kernel: int, stride: int) -> None:
    """Token by token and head by head: a softmax over the compressed keys whose tokens are all in the past."""
    from anyformer.runtime.context import Context

    made = model(layers="M", kernel_size=kernel, stride=stride)
    op, T = made.decoder.layers[0].attention.op, 11
    x, index = torch.randn(1, T, 24), torch.arange(T)
    expected = torch.zeros(T, 24)
    with torch.no_grad():
        q, k, v = op.q(x)[0], op.k(x)[0], op.v(x)[0]
        for t in range(T):
            ends = [j for j in range(T) if j * stride + kernel - 1 <= t]
            if not ends:
                continue
            keys, values = (
                torch.stack([
                    conv.bias + sum(conv.weight[..., i] @ raw[j * stride + i] for i in range(kernel)) for j in ends
                ])
                for conv, raw in ((op.short_k, k), (op.short_v, v))
            )  # fmt: skip
            for h in range(3):
                of = slice(8 * h, 8 * h + 8)
                expected[t, of] = (keys[:, of] @ q[t, of] / 8**0.5).softmax(0) @ values[:, of]
        close(op(x, Context(index=index, positions=index[None]))[0], op.o(expected))


def test_blocks_are_a_mask() -> None:
    mine = model(layers="LL")
    plain = Attention(num_heads=3, mask=CAUSAL & SameBlock(size=5))
    other = af.build(af.override(mine.spec, {"decoder.layers.local.attention.op": plain})).eval()
    other.load_state_dict(mine.state_dict())
    close(run(mine, input_ids=text(23)), run(other, input_ids=text(23)))


@over_kinds
def test_invariants(kind: dict[str, Any]) -> None:
    made, ids = model(**kind), text(31)
    found = all_hold(
        made, {"input_ids": ids}, {"labels": ids}, causality={"cuts": (1, 9, 14, 22)},
        packing={"cuts": (0, 5, 16, 23, 31)}, cached_decoding={"cuts": (0, 8, *range(9, 25), 26, 31)},
    )  # fmt: skip
    assert found == DECODER
    holds_in_half_precision(made, {"input_ids": ids})


@over_kinds
def test_padding_on_both_sides_and_of_packed_documents(kind: dict[str, Any]) -> None:
    made, ids = model(**kind), text(23)
    plain = run(made, input_ids=ids)
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor((5, 11, 7))).expand(2, -1)
    packed = run(made, input_ids=ids, document_ids=documents)
    padded, mask = F.pad(ids, (7, 1)), F.pad(torch.ones_like(ids), (7, 1))
    for kernel in KERNELS:
        for use_cache in (False, True):
            close(run(made, kernel, use_cache, input_ids=padded, attention_mask=mask)[:, 7:30], plain)
            after = {"input_ids": F.pad(ids, (0, 4)), "document_ids": F.pad(documents, (0, 4), value=2)}
            found = run(made, kernel, use_cache, **after, attention_mask=F.pad(torch.ones_like(ids), (0, 4)))
            close(found[:, :23], packed)


@over_kinds
def test_n5_a_row_that_sees_nothing_is_finite(kind: dict[str, Any]) -> None:
    made, ids = model(**kind), text(23)
    mask = torch.ones_like(ids)
    mask[0] = 0
    for made.kernel in KERNELS:
        made.zero_grad()
        out = made(input_ids=ids, attention_mask=mask, labels=ids)
        out.loss.backward()
        assert out.logits.isfinite().all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in made.parameters())


@over_kinds
def test_g1_decoding_goes_on_after_padding(kind: dict[str, Any]) -> None:
    """Rows of unequal length, which complete compressed keys at different steps; forked, joined and reordered."""
    made, ids = model(**kind), text(20)
    full, lengths = run(made, input_ids=ids), (9, 5)
    prompt = torch.stack([F.pad(ids[i, :n], (9 - n, 0)) for i, n in enumerate(lengths)])
    mask = torch.stack([F.pad(torch.ones(n, dtype=torch.long), (9 - n, 0)) for n in lengths])
    for capacity in (None, 20):
        state, row = made.new_state(2, capacity=capacity), mask
        for t in range(10):
            new = prompt if t == 0 else torch.stack([ids[i, n + t - 1] for i, n in enumerate(lengths)])[:, None]
            given = row if capacity is None else F.pad(row, (0, capacity - row.shape[1]), value=1)
            with torch.no_grad():
                out = made(input_ids=new, attention_mask=given, past_key_values=state)
            for i, n in enumerate(lengths):
                close(out.logits[i, -1], full[i, n + t - 1])
            row = F.pad(row, (0, 1), value=1)
            if t == 4:
                state = state.fork()
    states = []
    for i, n in enumerate(lengths):  # two caches of one text each become one of two
        states.append(made.new_state())
        run_on(made, ids[i : i + 1, :n], states[-1])
    both = State.concatenate(states)
    both.reorder(torch.tensor([1, 0, 1]))
    with torch.no_grad():
        new = torch.stack([ids[i, lengths[i]] for i in (1, 0, 1)])[:, None]
        out = made(input_ids=new, past_key_values=both).logits[:, -1]
    close(out, torch.stack([full[i, lengths[i]] for i in (1, 0, 1)]))


@torch.no_grad()
def run_on(made: Any, ids: Tensor, state: State) -> Any:
    return made(input_ids=ids, past_key_values=state)


@over_kinds
def test_a_state_says_its_size(kind: dict[str, Any]) -> None:
    made = model(**kind)
    state = made.new_state()
    run_on(made, text(20), state)
    assert state.nbytes == made.new_state(2, capacity=20).nbytes == af.count(made.spec).state(2, 20)


def test_generation_is_the_same_with_every_state() -> None:
    made, ids = model(), text(12, 3)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    options = {"max_new_tokens": 14, "eos_token_id": [], "pad_token_id": 0}
    for way in ({}, {"num_beams": 3, "num_return_sequences": 2}, {"do_sample": True, "seed": 3}):
        given = {"input_ids": ids, "attention_mask": mask, **options, **way}
        expected = af.generate(made, **given, use_cache=False)
        assert torch.equal(af.generate(made, **given), expected)
        assert torch.equal(af.generate(made, **given, prefill_chunk_size=4), expected)
        if "num_beams" not in way:
            drafted = af.generate(made, **given, assistant_model=model(seed=0), num_assistant_tokens=3)
            assert torch.equal(drafted, expected)
            static = made.new_state(3, capacity=26)
            assert torch.equal(af.generate(made, **given, past_key_values=static), expected)


@pytest.mark.slow
def test_n9_compiled_equals_eager() -> None:
    made, ids = model(layers="LM"), text(23)  # every layer is traced again
    torch._dynamo.reset()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager", dynamic=False)
    with torch.no_grad():
        for mask in (torch.ones_like(ids), F.pad(torch.ones_like(ids)[:, 6:], (6, 0))):
            mine = compiled(input_ids=ids, attention_mask=mask, use_cache=False).logits
            close(mine, run(made, input_ids=ids, attention_mask=mask))
        states = [made.new_state(2, capacity=12) for _ in range(2)]
        for state in states:
            run_on(made, ids[:, :5], state)
        for t in range(5, 9):
            new = ids[:, t : t + 1]
            close(compiled(input_ids=new, past_key_values=states[0]).logits, run_on(made, new, states[1]).logits)


def test_a_third_of_the_keys_and_blocks_in_linear_time() -> None:
    """FLOPs of attention: local layers are linear in the length; compressed ones need a third of plain ones."""
    found = {}
    for name, op in {"L": None, "M": None, "plain": Attention(num_heads=3, mask=CAUSAL)}.items():
        spec = description("dmca", layers=name if op is None else "L", block_size=16)
        spec = spec if op is None else af.override(spec, {"decoder.layers.local.attention.op": op})
        made = af.build(spec)
        for length in (240, 480):
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                made(input_ids=text(length, 1), use_cache=False)
            counts = counter.get_flop_counts()["Global"]
            found[name, length] = sum(n for what, n in counts.items() if "attention" in str(what))
    assert found["L", 480] == 2 * found["L", 240] and found["L", 480] == found["plain", 480] * 16 / 480
    assert found["M", 480] * 3 == found["plain", 480]


def test_the_published_shape() -> None:
    spec = af.spec("t-dmca")
    assert [spec.decoder.layer(i) is spec.decoder.layers[k] for i, k in enumerate(
        ("local", "compressed", "local", "compressed", "local"))] == [True] * 5  # fmt: skip
    # 5 layers of (4 projections, 2 norms, feed-forward); 2 layers convolve keys and values; one table
    layer = 4 * (512 * 512 + 512) + 2 * 1024 + 512 * 2048 + 2048 + 2048 * 512 + 512
    assert af.count(spec).parameters == 32000 * 512 + 5 * layer + 2 * 2 * (3 * 512 * 512 + 512) == 35_293_696


def test_rivals_of_the_same_table() -> None:
    """The decoder is plain causal attention; experts change only the feed-forward of the compressed layers."""
    plain, base = af.spec("transformer-d"), af.count(af.spec("t-dmca")).parameters
    assert {type(plain.decoder.layer(i).steps["attention"].op).__name__ for i in range(5)} == {"Attention"}
    assert af.count(plain).parameters == base - 2 * 2 * (3 * 512 * 512 + 512)  # no convolutions
    for experts in (128, 256):
        counted = af.count(af.spec(f"t-dmca-moe-{experts}"))
        expert = 512 * 2048 + 2048 + 2048 * 512 + 512
        routers = counted.parameters - base - 2 * (experts - 1) * expert
        assert 0 < routers <= 2 * 2 * (512 + 1) * experts
        assert counted.parameters - counted.active == 2 * (experts - 2) * expert  # two experts per token
    small = description("dmca", layers="LFM", num_experts=3)
    assert families.find("dmca").recover(small)["num_experts"] == 3
    out = af.build(small, seed=0)(input_ids=text(20, 1), labels=text(20, 1))
    assert out.loss.isfinite()
