"""Weights of 8 and 4 bits: rounding, rows independent of the batch, and nearly the same likelihood of real text."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.kernels import hardware
from anyformer.transforms import quantize as module
from anyformer.transforms.fuse import fuse, unfuse
from anyformer.transforms.quantize import FORMATS, Int8Linear, activation_levels, quantize
from small import close
from tiny import inputs_of, model_of

REPO = Path(__file__).resolve().parents[2]


def layer(out: int = 48, width: int = 64, bias: bool = True) -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(width, out, bias=bias).requires_grad_(False)


def test_weights_are_rounded_by_channel() -> None:
    linear = layer()
    linear.weight[3] *= 100  # one large channel does not affect the others
    linear.weight[5] = 0
    q = Int8Linear.from_linear(linear)
    assert q.weight.dtype == torch.int8
    assert q.weight.abs().amax(1).tolist() == [127 if row != 5 else 0 for row in range(48)]  # the full range
    assert bool((q.dequantize() - linear.weight).abs().le(q.scale[:, None] / 2 * 1.0001).all())
    assert torch.equal(q.dequantize()[5], linear.weight[5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_product(dtype: torch.dtype, bias: bool, exact: bool) -> None:
    linear, x = layer(bias=bias), torch.randn(3, 5, 64) * torch.tensor([0.01, 1.0, 300.0])[:, None, None]
    q = Int8Linear.from_linear(linear, exact).to(dtype)
    got = q(x.to(dtype))
    assert got.dtype == dtype and got.shape == (3, 5, 48)
    weight = q.dequantize()
    expected = torch.nn.functional.linear(x.to(dtype).float(), weight, None if q.bias is None else q.bias.float())
    # error of activations: half a step of the row's largest, in each of 64 products; most errors cancel
    step = x.abs().amax(-1, keepdim=True) / activation_levels()
    rounding = step / 2 * weight.norm(dim=1) * 4 if not exact else 0
    eps = 2**-20 if dtype == torch.float32 else float(torch.finfo(dtype).eps) * 8
    assert bool(((got.float() - expected).abs() <= rounding + eps * x.abs().amax(-1, keepdim=True) + eps).all())


def test_a_batch_changes_no_row() -> None:
    q = Int8Linear.from_linear(layer())
    x = torch.randn(6, 64) * torch.logspace(-3, 3, 6)[:, None]
    together = q(x)
    for row, alone in enumerate(x):
        apart = (q(alone[None])[0] - together[row]).abs().max()
        # sums of integers do not depend on their order; without an engine, sums of floats do
        assert apart <= (0 if hardware.has("int8") else 1e-6 * together[row].abs().max())


def test_odd_inputs() -> None:
    q = Int8Linear.from_linear(layer())
    close(q(torch.zeros(2, 64)), q.bias.expand(2, -1))
    assert q(torch.zeros(0, 64)).shape == (0, 48)
    assert bool(q(torch.full((1, 64), float("nan"))).isnan().all()), "NaN must propagate"


engine = pytest.mark.skipif(not hardware.has("int8"), reason="torch has no 8-bit products for this CPU")


@engine
def test_cpus_without_vnni_keep_seven_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    q, x = Int8Linear.from_linear(layer()), torch.randn(4, 64)
    exact = Int8Linear.from_linear(layer(), exact=True)(x)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    rough = (q(x) - exact).abs().max()
    q.weight.fill_(127)  # the largest possible products: their 16-bit sums must not overflow
    q.bias.zero_()
    close(q(torch.ones(1, 64)), 127 * 64 * q.scale[None], 1e-5)
    assert activation_levels() == 63 and rough < 64 * 4 * float(q.scale.max())


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate a CPU without 8-bit products."""
    monkeypatch.setenv(hardware.HIDING, "int8,int4")
    module.tell_once.cache_clear()
    yield
    module.tell_once.cache_clear()


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 17, 40])
def test_without_an_engine_activations_stay_as_they_are(rows: int, dtype: torch.dtype) -> None:
    """Products use fp32 copies of the weights, with a warning."""
    q = Int8Linear.from_linear(layer(width=60)).to(dtype)
    x = (torch.randn(rows, 60) * torch.logspace(-3, 3, rows)[:, None]).to(dtype)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = [q(x) for _ in range(2)]
    assert len(caught) == (rows < module.MANY)
    assert all("fp32 copies are kept" in str(each.message) for each in caught)
    expected = torch.nn.functional.linear(x.float(), q.dequantize(), q.bias.float())
    for each in got:
        assert each.dtype == dtype
        close(each.float(), expected, float(torch.finfo(dtype).eps) * 4 * float(expected.abs().max()))


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_texts_are_those_of_the_rounded_weights() -> None:
    ids = inputs_of("gpt2")["input_ids"]
    model, exact = (quantize(model_of("gpt2"), exact=exact) for exact in (False, True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        texts = [af.generate(each, input_ids=ids, max_new_tokens=8, eos_token_id=None) for each in (model, exact)]
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            close(compiled(input_ids=ids).logits, exact(input_ids=ids).logits, 1e-5)
    assert torch.equal(*texts)


four_bits = pytest.mark.skipif(not hardware.has("int4"), reason="torch has fast 4-bit products only for ARM")


@four_bits
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("out, width, rows", [(48, 64, 1), (7, 34, 5), (5, 100, 2), (20, 700, 40)])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_on_arm_rows_are_rounded_to_8_bits(
    kind: str, out: int, width: int, rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGE", 0)
    q = FORMATS[kind].from_linear(layer(out, width), group=32).to(dtype)
    x = ((torch.randn(rows, width) + 0.3) * torch.logspace(-3, 3, rows)[:, None]).to(dtype)
    got, weight = q(x), q.dequantize()
    expected = torch.nn.functional.linear(x.float(), weight, q.bias.float())
    assert got.dtype == dtype and not torch.allclose(got.float(), expected, 1e-5, 0), "activations were not rounded"
    step = (x.float().amax(1).clamp(min=0) - x.float().amin(1).clamp(max=0)) / 255
    loud = (weight.abs() + 8 * q.scale.float().amax(-1, keepdim=True).view(-1, 1)).norm(dim=1)  # in two parts
    bound = step[:, None] / 2 * 3 * loud + torch.finfo(dtype).eps * (expected.abs() + 1)
    assert bool(((got.float() - expected).abs() <= bound).all())
    for row, alone in enumerate(x):
        close(q(alone[None])[0], got[row], float(torch.finfo(dtype).eps) * 16 * float(got[row].abs().max()))
    x[0, 3] = float("nan")
    assert bool(q(x)[0].isnan().all()) and (rows == 1 or bool(q(x)[-1].isfinite().all()))
    x[0, 3] = float("-inf")
    assert not q(x)[0].isfinite().any(), "NaN and infinity must propagate"
    q.weight.copy_(q.weight.flip(1))
    x = torch.randn(2, width, dtype=dtype)
    expected = torch.nn.functional.linear(x.float(), q.dequantize(), q.bias.float())
    assert float((q(x).float() - expected).norm() / expected.norm()) < 0.02, "not packed again"


@four_bits
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_on_arm_a_model_compiles_and_writes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 0)
    ids, model = inputs_of("gpt2")["input_ids"], quantize(model_of("gpt2"), format=kind)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        close(compiled(input_ids=ids).logits, model(input_ids=ids).logits, 1e-5)
    assert af.generate(model, input_ids=ids, max_new_tokens=8, eos_token_id=None).shape[1] == ids.shape[1] + 8


@pytest.mark.usefixtures("no_engine")
def test_a_weight_that_changes_is_copied_anew() -> None:
    q, x = Int8Linear.from_linear(layer(bias=False)), torch.randn(2, 64)
    with pytest.warns(UserWarning, match="exact=True keeps no copies"):
        before = q(x)
    q.weight.neg_()
    close(q(x), -before, 1e-6)


FAMILIES = ("gpt2", "llama", "bert", "t5")


@pytest.mark.parametrize("family", FAMILIES)
def test_models(family: str) -> None:
    model, inputs = model_of(family), inputs_of(family)
    with torch.no_grad():
        before = model(**inputs).logits
        table = model.embedding.tokens.weight.clone()
        assert quantize(model) is model
        assert not any(type(m) is torch.nn.Linear for m in model.modules())
        assert torch.equal(model.embedding.tokens.weight, table), "the tied token embedding changed"
        after = model(**inputs).logits
        assert float((after - before).norm() / before.norm()) < 0.03


@pytest.mark.parametrize("family", ["gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES[1:])])
@pytest.mark.parametrize("options", [{}, {"exact": True}, {"format": "fp8"}, {"format": "int4"}], ids=str)
def test_compiled(family: str, options: dict[str, Any]) -> None:
    """Quantized layers compile into one graph, whichever module contains them."""
    model, inputs = quantize(model_of(family, depth=1), **options), inputs_of(family)
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(**inputs).logits
        close(compiled, model(**inputs).logits, 1e-5)


def test_generation_with_int8_weights() -> None:
    model = quantize(model_of("gpt2"))
    ids = inputs_of("gpt2")["input_ids"]
    cached = af.generate(model, input_ids=ids, max_new_tokens=8, eos_token_id=None)
    assert torch.equal(cached, af.generate(model, input_ids=ids, max_new_tokens=8, eos_token_id=None, use_cache=False))
    assert torch.equal(cached[:1], af.generate(model, input_ids=ids[:1], max_new_tokens=8, eos_token_id=None))
    again = copy.deepcopy(model)
    assert torch.equal(cached, af.generate(again, input_ids=ids, max_new_tokens=8, eos_token_id=None))


@pytest.mark.parametrize("format", FORMATS)
def test_made_and_used_in_inference_mode(format: str) -> None:
    """Tensors made there do not count their changes."""
    ids = inputs_of("gpt2")["input_ids"]
    expected = af.generate(quantize(model_of("gpt2"), format=format), input_ids=ids, max_new_tokens=4)
    with torch.inference_mode():
        model = quantize(model_of("gpt2"), format=format)
        assert torch.equal(af.generate(model, input_ids=ids, max_new_tokens=4), expected)


def test_patterns_and_mistakes() -> None:
    model = quantize(model_of("llama"), "decoder.*")
    assert type(model.head.out) is torch.nn.Linear and type(model.decoder.layers[0].attention.op.q) is Int8Linear
    with pytest.raises(ValueError, match=r"no linear layer matches 'decoder.layers.0.attention.op.qq'; .*\.q"):
        quantize(model_of("llama"), "decoder.layers.0.attention.op.qq")
    with pytest.raises(ValueError, match=r"unknown format 'int5'; did you mean 'int8'"):
        quantize(model_of("llama"), format="int5")
    with pytest.raises(ValueError, match="group: 48 is not a power of 2"):
        quantize(model_of("llama"), format="int4", group=48)
    with pytest.raises(ValueError, match="eval"):
        quantize(model_of("llama").train())


@pytest.mark.parametrize("family", ["gpt2", "llama"])  # a tied head, and an untied one
@pytest.mark.parametrize("format", FORMATS)
@torch.no_grad()
def test_saved_and_loaded(format: str, family: str, tmp_path: Path) -> None:
    inputs, plain = inputs_of(family), model_of(family)
    model = quantize(model_of(family), format=format, group=32)
    expected = model(**inputs).logits
    af.save(model, tmp_path / "ours")
    again = af.load(tmp_path / "ours")
    assert type(again.head.out) is FORMATS[format] and again.spec.ties == plain.spec.ties
    stored, loaded = model.state_dict(), again.state_dict()
    assert {name: tensor.dtype for name, tensor in stored.items()} == {name: t.dtype for name, t in loaded.items()}
    assert torch.equal(again(**inputs).logits, expected)
    half = af.load(tmp_path / "ours", dtype="bfloat16")
    assert half.head.out.scale.dtype == model.head.out.scale.dtype and half.dtype == torch.bfloat16
    af.save(model, tmp_path / "hf", format="hf")  # floats, which any library can read
    floats = af.load(tmp_path / "hf")
    for address, layer in model.named_modules():
        if isinstance(layer, FORMATS[format]) and not plain.spec.owner_of(f"{address}.weight"):
            assert torch.equal(floats.get_submodule(address).weight, layer.dequantize())


def test_wrong_shapes_are_refused(tmp_path: Path) -> None:
    model = quantize(model_of("llama"), format="int4", group=32)
    layer = model.decoder.layers[0].attention.op.q
    layer.scale, layer.offset = layer.scale[:, :-1].clone(), layer.offset[:, :-1].clone()
    af.save(model, tmp_path / "x")
    with pytest.raises(ValueError, match="decoder.layers.0.attention.op.q has quantized weights of wrong shapes"):
        af.load(tmp_path / "x")


@pytest.mark.parametrize("format, bits, close_to", [("int8", 8, 0.03), ("fp8", 8, 0.06), ("int4", 4, 0.25)])
@torch.no_grad()
def test_formats(format: str, bits: int, close_to: float) -> None:
    model, inputs = model_of("llama"), inputs_of("llama")
    before = model(**inputs).logits
    linears = [m for m in model.modules() if type(m) is torch.nn.Linear]
    group = 32 if format == "int4" else 1  # the last group is padded
    numbers = sum(m.out_features * -(-m.in_features // group) * group for m in linears)
    quantize(model, format=format, group=32)
    layers = [m for m in model.modules() if isinstance(m, FORMATS[format])]
    assert len(layers) == len(linears)
    assert sum(m.weight.nbytes for m in layers) * 8 == bits * numbers
    alone = model(**inputs).logits
    assert 0 < float((alone - before).norm() / before.norm()) < close_to
    fuse(model)
    op = model.decoder.layers[0].attention.op
    assert op.qkv is not None and op.qkv.whole.weight.data_ptr() == op.q.weight.data_ptr(), "no second copy"
    close(model(**inputs).logits, alone, 1e-5)
    close(copy.deepcopy(model)(**inputs).logits, alone, 1e-5)
    unfuse(model)
    assert torch.equal(model(**inputs).logits, alone)
    model.bfloat16()
    assert layers[0].weight.dtype == type(layers[0]).from_linear(torch.nn.Linear(32, 2)).weight.dtype
    assert float((model(**inputs).logits.float() - alone).norm() / alone.norm()) < 0.05


@torch.no_grad()
def test_layers_that_are_joined_keep_activations_exact() -> None:
    """With an engine, rounded activations would change the result; without one, float copies would cause a warning."""
    model, inputs = quantize(model_of("llama"), exact=True), inputs_of("llama")
    before = model(**inputs).logits
    module.tell_once.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(fuse(model)(**inputs).logits, before, 1e-5)


def test_layers_of_different_groups_stay_apart() -> None:
    model = quantize(model_of("llama"), "*.q", format="int4", group=32)
    quantize(model, "*.[kv]", format="int4", group=64)
    quantize(model, "head.*")
    fuse(model)
    assert model.decoder.layers[0].attention.op.qkv is None and type(model.head.out) is Int8Linear


@pytest.mark.slow
def test_real_weights_on_real_text(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """stories260K: the generated story stays fluent, and its text has nearly the same likelihood."""
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))
    import stories

    monkeypatch.delitem(sys.modules, "stories")
    model, encode = stories.load(shared_data / "weights" / "stories260K")
    prompt = torch.tensor([encode("Once upon a time")])
    text = af.generate(model, input_ids=prompt, max_new_tokens=200, eos_token_id=None)[0].tolist()
    assert encode.decode(text).startswith(" Once upon a time, there was a little girl named Lily.")
    sampled = af.generate(
        model, input_ids=torch.ones(3, 1, dtype=torch.long), max_new_tokens=255, do_sample=True, top_k=0, seed=0,
        eos_token_id=None,
    ).flatten().tolist()  # fmt: skip
    before = stories.perplexity(model, sampled, 256)
    assert 2 < before < 6
    quantize(model)
    assert abs(stories.perplexity(model, sampled, 256) / before - 1) < 0.02


@pytest.mark.gpu
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rows", [1, 4, 100])
@torch.no_grad()
def test_gpu(rows: int, format: str) -> None:
    linear, x = layer().cuda().bfloat16(), torch.randn(rows, 64, device="cuda", dtype=torch.bfloat16)
    q = FORMATS[format].from_linear(linear).cuda()
    expected = torch.nn.functional.linear(x.float(), q.dequantize(), linear.bias.float())
    close(q(x).float(), expected, 0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("compiled", [None, True])
def test_generation_on_a_gpu(format: str, compiled: bool | None) -> None:
    """The captured step generates the same text as plain steps."""
    model = fuse(quantize(model_of("llama").cuda(), format=format, group=32))
    ids = inputs_of("llama")["input_ids"].cuda()[:1]
    options: dict[str, Any] = {"input_ids": ids, "max_new_tokens": 24, "eos_token_id": None}
    assert torch.equal(af.generate(model, compile=compiled, **options), af.generate(model, compile=False, **options))
