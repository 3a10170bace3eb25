"""FLOPs from descriptions only: equal to what torch counts in the built model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from catalogue import Case, cases, coarse_graph, graph, make_inputs, over, spec_of, time_axis
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import anyformer as af
from anyformer import families
from anyformer.counting import flops
from anyformer.counting.flops import inputs_of, measure, visible_pairs
from anyformer.counting.shares import shares
from anyformer.kernels.capture import graph_capture
from anyformer.models.construct import skeleton
from anyformer.parts.computed import Computed
from anyformer.parts.feedforward.routers import Switch
from anyformer.parts.mask import Causal, Fixed, Full, Global, Window
from anyformer.runtime.visibility import Rows
from anyformer.specs.part import walk
from anyformer.stacks.stack import Stack
from tiny import CONFIGS


def counted_by_torch(run: Callable[[], Any], **options: Any) -> int:
    """torch does not count fused attention on CPUs, so it runs the plain one."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, **options) as counter:
        run()
    return counter.get_total_flops()


def roomy(spec: Any) -> Any:
    """FLOPs of a switch assume that no expert is full."""
    routers = {path: 1000 for path, part in walk(spec) if isinstance(part, Switch)}
    return af.override(spec, {f"{path}.capacity": size for path, size in routers.items()})


def one_row(case: Case, spec: Any, rows: int = 1) -> tuple[dict[str, Any], int, int]:
    """Return inputs of one text or of `rows` texts, their length, and the length of the encoder's input."""
    inputs = make_inputs(case, batch=rows)
    inputs.pop("global_attention_mask", None)
    first = spec.embedding.inputs[0]
    if first == "pixel_values":
        inputs[first] = torch.zeros(1, *spec.embedding.row(0, spec.width)[first])
    if first == "input_ids" and inputs[first].dim() == 3:  # several choices
        inputs = {name: value[:, :1] for name, value in inputs.items()}
    memory = inputs.get("encoder_hidden_states")
    read = inputs[first].shape[time_axis(spec)]
    length = inputs["decoder_input_ids"].shape[1] if spec.pair else read
    return inputs, length, read if memory is None else memory.shape[1]


@over(cases(), graph)
def test_flops_are_those_torch_counts(case: Case) -> None:
    spec = roomy(spec_of(case))
    rows = 2 if any(getattr(part, "mirrored", False) for _, part in walk(spec)) else 1  # XLNet's halves of a batch
    inputs, length, source = one_row(case, spec, rows)
    model = af.build(spec).eval()
    with torch.no_grad():
        expected = counted_by_torch(lambda: model(**inputs)) / rows
    counted = af.count(spec)
    assert counted.flops(length, source_length=source) == pytest.approx(expected, rel=0.01)
    assert sum(counted.flops_table(length, source_length=source).values()) == counted.flops(length, 1, False, source)
    assert counted.flops(length, 3, source_length=source) == 3 * counted.flops(length, source_length=source)


@over(cases(), coarse_graph)
def test_layers_that_are_alike_are_run_twice(case: Case) -> None:
    """FLOPs, their causal part and activation bytes of the other layers equal the second layer's."""
    spec = spec_of(case)
    stacks = {path: part for path, part in walk(spec) if isinstance(part, Stack) and part.order is None}
    spec = af.override(spec, {f"{path}.depth": part.depth + 2 for path, part in stacks.items()})
    _, length, source = one_row(case, spec)
    ours, whole = af.count(spec).work(length, source), measure(skeleton(spec), inputs_of(spec, length, source))
    for name in ("kept", "products", "pairs", "later", "hidden"):
        assert getattr(ours, name) == getattr(whole, name), name


EVERY = [name for name, _ in families.names()]


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_flops_of_every_named_description(name: str) -> None:
    """All layers, on meta. torch cannot count the product of one expert per token, so the test adds it."""
    spec = roomy(af.spec(name))
    limit = 400 * 40 if "input_values" in spec.embedding.inputs else 64
    model = skeleton(spec).eval()
    for module in model.modules():
        if isinstance(module, Computed):
            with torch.device("meta"):
                module.value = module.compute()
    experts = {torch.ops.anyformer.grouped_linear: lambda x, w, *rest, **more: 2 * x[0] * x[1] * w[2]}
    with torch.device("meta"), graph_capture():
        expected = counted_by_torch(lambda: model(**inputs_of(spec, limit)), custom_mapping=experts)
    assert af.count(spec).flops(limit) == pytest.approx(expected, rel=0.01)


# -- formulas that are written out ------------------------------------------------------------------------------------


def test_gpt2_by_hand() -> None:
    """12 layers of width 768 over 50257 tokens: (24 d d + 4 n d) per token and layer, and 2 d V."""
    counted, n, d, V = af.count(af.spec("gpt2")), 1000, 768, 50257
    pairs = 12 * 4 * n * n * d
    assert counted.flops(n) == 12 * 24 * d * d * n + pairs + 2 * d * V * n
    assert counted.flops(n) - counted.flops(n, causal=True) == pairs * (n - 1) // (2 * n)
    assert counted.training_flops(n, 5) == 15 * counted.flops(n)
    assert counted.training_flops(n, 5, recompute=True, causal=True) == 20 * counted.flops(n, causal=True)


def test_backward_is_two_products_for_each() -> None:
    small = {"width": 64, "decoder.depth": 2, "decoder.layers.attention.op.head_width": 16}
    spec = af.override(af.spec("gpt2"), {**small, "embedding.tokens.vocab_size": 99, "head.vocab_size": 99})
    model, ids = af.build(spec).eval(), torch.arange(12)[None]
    expected = counted_by_torch(lambda: model(input_ids=ids).logits.sum().backward())
    assert af.count(spec).training_flops(12) == expected


def test_an_encoder_has_no_past() -> None:
    counted = af.count(af.spec("bert-base"))
    assert counted.flops(128) == counted.flops(128, causal=True)
    pair = af.count(af.spec("t5-small"))  # 6 layers of 8 heads of 64: only the decoder's attention
    assert pair.flops(128) - pair.flops(128, causal=True) == 6 * 4 * 128 * 128 * 512 * 127 // 256


MASKS: list[Any] = [
    {"kind": "Causal"}, Causal() & Window(size=5), Causal() & Window(size=40),
    Causal() & Fixed(stride=4), Causal() & (Window(size=3) | Global(first=2)),
]  # fmt: skip


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_masks_need_the_products_of_the_pairs_they_let_through(mask: Any) -> None:
    """As many as attention weights are not zero in a running model; the kernel still computes the square."""
    spec = af.override(families.find("gpt2").read(CONFIGS["gpt2"]), {"decoder.layers.1.attention.op.mask": mask})
    model, counted, T, width = af.build(spec).eval(), af.count(spec), 20, 24
    run = af.trace(model, keep=["decoder.layers.*.attention.op.weights"], input_ids=torch.arange(T)[None])
    seen = [int((run[f"decoder.layers.{i}.attention.op.weights"][0, 0] > 0).sum()) for i in range(2)]
    assert seen[0] == T * (T + 1) // 2
    square = 2 * 4 * T * T * width  # both products of two layers
    assert counted.needed_flops(T) == counted.flops(T) - square + 4 * width * sum(seen)
    assert counted.needed_flops(T, batch=3) == 3 * counted.needed_flops(T)
    plain = af.count(families.find("gpt2").read(CONFIGS["gpt2"]))
    assert counted.flops(T) == plain.flops(T) and plain.needed_flops(T) == plain.flops(T, causal=True)


@pytest.mark.parametrize("mask", [Causal() & Window(size=7), Causal(), Full(), Window(size=3)], ids=str)
def test_pairs_of_a_mask_are_counted_as_the_mask_answers(mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    places = torch.arange(30)
    allowed = mask.allows(torch.zeros(1, 1, dtype=torch.long), places[:, None], places[None], Rows()).expand(30, 30)
    assert visible_pairs(mask, 30) == int(allowed.sum())
    monkeypatch.setattr(flops, "EXACT", 16)  # above it, from a sample of the queries
    assert visible_pairs.__wrapped__(mask, 30) == pytest.approx(int(allowed.sum()), rel=0.2)


def test_an_image_has_as_many_positions_whatever_the_length() -> None:
    counted = af.count(af.spec("vit-b16"))
    assert counted.positions(1) == counted.positions(512) == 197 and counted.flops(512) == counted.flops(197)
    assert af.count(af.spec("gpt2")).positions(512) == 512
    assert af.count(af.spec("wav2vec2-base")).positions(16000) == 49


STEPS = ("GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration", "DeepseekV3ForCausalLM",
         "MambaForCausalLM")  # fmt: skip


@pytest.mark.parametrize("case", [case for case in cases() if case.id in STEPS], ids=lambda case: case.id)
def test_a_decoding_step(case: Case) -> None:
    spec = spec_of(case)
    inputs, length, source = one_row(case, spec)
    model = af.build(spec).eval()
    name = "decoder_input_ids" if spec.pair else "input_ids"
    ids = inputs.pop(name)
    with torch.no_grad():
        past = model(**inputs, **{name: ids[:, :-1]}, use_cache=True).past_key_values
        expected = counted_by_torch(lambda: model(**{name: ids[:, -1:]}, past_key_values=past))
    step = af.count(spec).decode(length, source_length=source).flops
    assert step == pytest.approx(expected, rel=0.01)
    assert af.count(spec).decode(length, 4, torch.bfloat16, source).flops == 4 * step


def test_what_a_step_reads() -> None:
    """Dense: all weights except the token table, and the cache; with experts, only the chosen ones."""
    spec = af.override(af.spec("llama3-8b"), {"decoder.depth": 2})
    counted = af.count(spec)
    table = spec.embedding.tokens.vocab_size * spec.width
    step = counted.decode(100, 2, torch.bfloat16)
    assert step.bytes == 2 * (counted.parameters - table) + counted.state(2, 100, torch.bfloat16)
    sparse = af.count(af.override(af.spec("mixtral-8x7b"), {"decoder.depth": 2}))
    table = 32000 * 4096
    assert sparse.decode(10, 1, torch.int8).bytes - sparse.state(1, 10, torch.bfloat16) == sparse.active - table
    assert sparse.prefill(10, 1, torch.int8).bytes - sparse.state(1, 10, torch.bfloat16) == sparse.parameters - table


def test_too_long_a_text() -> None:
    with pytest.raises(ValueError, match="2,000 .*1,024"):
        af.count(af.spec("gpt2")).flops(2000)
    with pytest.raises(ValueError, match="length.* 1.* 0"):
        af.count(af.spec("gpt2")).flops(0)
    with pytest.raises(ValueError, match="has no decoding step"):
        af.count(af.spec("bert-base")).decode(8)


# -- FLOPs by purpose ----------------------------------------------------------------------------------------------


def test_attention_is_a_smaller_share_of_a_larger_model() -> None:
    """GPT-3's smallest and largest size at 2048 tokens: of 24 d d + 4 n d, attention products are n / (6 d + n)."""
    for name, width in (("gpt3-small", 768), ("gpt3-175b", 12288)):
        found = shares(af.count(af.spec(name)), 2048)
        layers = found["products"] + found["projections"] + found["feed-forward"]
        assert found["products"] / layers == pytest.approx(2048 / (6 * width + 2048))
        assert sum(found.values()) == af.count(af.spec(name)).flops(2048)


@pytest.mark.parametrize("op", [
    {"kind": "LSHAttention", "chunk": 4, "buckets": [4], "rounds": 2},
    {"kind": "LSHAttention", "chunk": 4, "buckets": [4], "causal": True, "own_bucket": True},
    {"kind": "RecurrentAttention", "segment": 4, "kept": 4, "compressed": 3, "rate": 2},
    {"kind": "RoutingAttention", "clusters": 3, "window": 5}, {"kind": "RoutingAttention", "window": 5, "causal": True},
    {"kind": "SinkhornAttention", "block": 4, "length": 30},
], ids=lambda op: op["kind"])  # fmt: skip
def test_mixers_that_no_family_has(op: dict[str, Any]) -> None:
    """The counted model is the one that is built and run."""
    spec = families.find("bert").read(CONFIGS["bert"])
    spec = af.override(spec, {"encoder.layers.attention.op": op | {"num_heads": 4}})
    model, counted = af.build(spec).eval(), af.count(spec)
    assert counted.parameters == sum(parameter.numel() for parameter in model.parameters())
    with torch.no_grad():
        expected = counted_by_torch(lambda: model(input_ids=torch.randint(5, 50, (1, 22))))
    assert counted.flops(22) == pytest.approx(expected, rel=0.01)


@torch.no_grad()
def test_experts_are_counted_without_gradients() -> None:
    assert af.count(af.spec("mixtral-8x7b")).flops(1, 8) > 0
