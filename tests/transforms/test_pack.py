"""Packed weights: the same outputs at every batch size, and no stale copies."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch

import anyformer as af
from anyformer.kernels import hardware
from anyformer.transforms.fuse import fuse
from anyformer.transforms.pack import PACKED, PackedForward, pack, unpack
from small import close
from tiny import CONFIGS, inputs_of, model_of


def layer(bias: bool = True) -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(48, 40, bias=bias).requires_grad_(False)


@pytest.mark.parametrize("shape", [(48,), (1, 48), (2, 48), (8, 1, 48), (2, 31, 48), (65, 48), (0, 48)])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_products(shape: tuple[int, ...], bias: bool) -> None:
    linear, x = layer(bias), torch.randn(shape)
    expected = linear(x)
    close(pack(torch.nn.Sequential(linear))(x), expected)


packs = pytest.mark.skipif(not hardware.has("onednn"), reason="torch cannot pack weights for this CPU")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_nothing_is_packed_where_it_cannot_be(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hardware.HIDING, "onednn,bf16")
    PACKED.kept.clear()  # another layer may have had this memory address
    linear, x = layer().to(dtype), torch.randn(8, 48).to(dtype)
    expected = linear(x)
    assert torch.equal(pack(torch.nn.Sequential(linear))(x), expected)
    assert linear.weight.data_ptr() not in PACKED.kept


@packs
@torch.no_grad()
def test_weights_changed_in_place_are_packed_again() -> None:
    model, x = pack(torch.nn.Sequential(layer())), torch.randn(8, 48)
    before = model(x)
    assert model[0].weight.data_ptr() in PACKED.kept, "nothing was packed"
    model[0].weight.mul_(2)
    close(model(x) - model[0].bias, 2 * (before - model[0].bias))
    model.load_state_dict({name: value * 3 for name, value in model.state_dict().items()})
    close(model(x), torch.nn.functional.linear(x, model[0].weight, model[0].bias))
    close(copy.deepcopy(model)(x), model(x), 0)
    close(model.double()(x.double()), torch.nn.functional.linear(x.double(), model[0].weight, model[0].bias), 1e-12)


@packs
@torch.no_grad()
def test_a_joined_layer_changed_by_its_parts_is_packed_again() -> None:
    model, inputs = pack(fuse(model_of("llama"))), inputs_of("llama")
    model(**inputs)
    assert model.decoder.layers[0].attention.op.qkv.whole.weight.data_ptr() in PACKED.kept
    other = model_of("llama")
    for some in (model, other):
        some.decoder.layers[0].attention.op.k.weight.mul_(-1.5)
    close(model(**inputs).logits, other(**inputs).logits)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("fused", [False, True])
@torch.no_grad()
def test_models(family: str, fused: bool) -> None:
    model, inputs = model_of(family), inputs_of(family)
    before, names = model(**inputs).logits, list(model.state_dict())
    if fused:
        fuse(model)
    assert pack(model) is model
    close(model(**inputs).logits, before)
    assert list(model.state_dict()) == names
    if fused and family != "bert":
        assert isinstance(model.decoder.layers[0].attention.op.qkv.whole.forward, PackedForward)
    unpack(model)
    assert not any(isinstance(m.forward, PackedForward) for m in model.modules())
    close(model(**inputs).logits, before)


def test_a_batch_writes_the_same() -> None:
    model, ids = model_of("gpt2"), inputs_of("gpt2")["input_ids"]
    options = {"max_new_tokens": 8, "eos_token_id": None}
    expected = af.generate(model, input_ids=ids, **options)
    pack(fuse(model))
    assert torch.equal(af.generate(model, input_ids=ids, **options), expected)
    assert torch.equal(af.generate(model, input_ids=ids[:1], **options), expected[:1])


def test_training_goes_on() -> None:
    plain, packed, inputs = model_of("gpt2"), pack(model_of("gpt2")), inputs_of("gpt2")
    for model in (plain, packed):
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
    for (name, a), (_, b) in zip(plain.named_parameters(), packed.named_parameters(), strict=True):
        assert a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad), name


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="no linear layer matches 'decoder.q'"):
        pack(model_of("gpt2"), "decoder.q")


@pytest.mark.slow
@torch.no_grad()
def test_packed_layers_compile() -> None:
    """Compiled code uses packed weights for few rows too, and packs changed weights again."""
    model, inputs = pack(fuse(model_of("llama"))), inputs_of("llama")
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    PACKED.kept.clear()
    compiled(**inputs)
    weight = model.decoder.layers[0].attention.op.o.weight
    assert (weight.data_ptr() in PACKED.kept) == hardware.has("onednn")
    for factor in (1.0, -1.5):
        model.decoder.layers[0].attention.op.k.weight.mul_(factor)
        close(compiled(**inputs).logits, model(**inputs).logits)


@packs
def test_what_is_packed_goes_with_its_weights() -> None:
    model = pack(torch.nn.Sequential(layer()))
    with torch.no_grad():
        model(torch.randn(8, 48))
    place = model[0].weight.data_ptr()
    assert place in PACKED.kept
    del model
    gc.collect()
    assert place not in PACKED.kept


@torch.no_grad()
def test_a_copy_of_a_packed_model_is_independent() -> None:
    """Deep copies and pickles are packed too, and their layers use their own weights."""
    model, inputs = pack(fuse(model_of("gpt2"))), inputs_of("gpt2")
    expected = model(**inputs).logits
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        close(other(**inputs).logits, expected, 0)
        layer = other.decoder.layers[0].feedforward.op.up
        assert isinstance(layer.forward, PackedForward)
        layer.weight.mul_(2)
        x = torch.randn(8, layer.in_features)
        for each in (layer, unpack(layer)):
            close(each(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    close(model(**inputs).logits, expected, 0)


def test_a_layer_stays_the_same_object() -> None:
    model, seen = model_of("gpt2"), []
    layer = model.decoder.layers[0].feedforward.op.up
    layer.register_forward_hook(lambda *_: seen.append(True))
    pack(model)
    model(**inputs_of("gpt2"))
    assert seen == [True] and model.decoder.layers[0].feedforward.op.up is layer
