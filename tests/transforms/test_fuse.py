"""Fused projections: the same outputs, addresses, files and gradients for every kind of attention."""

from __future__ import annotations

import copy

import pytest
import torch

import anyformer as af
from anyformer.parts.fused_linear import Joined
from anyformer.transforms.fuse import fuse, unfuse
from anyformer.transforms.quantize import quantize
from small import close
from tiny import CONFIGS, inputs_of, model_of


@pytest.mark.parametrize("family", CONFIGS)
def test_outputs_stay_equal(family: str) -> None:
    model, inputs = model_of(family), inputs_of(family)
    with torch.no_grad():
        before = model(**inputs).logits
        names = dict(model.named_parameters())
        assert fuse(model) is model
        joined = [m for m in model.modules() if isinstance(m, Joined)]
        assert len(joined) == {"gpt2": 2, "llama": 4, "bert": 2, "t5": 8}[family]
        calls: list[int] = []
        for module in joined:
            module.register_forward_hook(lambda *_: calls.append(1))
        close(model(**inputs).logits, before)
        assert len(calls) == len(joined), "a fused layer was not used"
        after = dict(model.named_parameters())
        assert list(after) == list(names) and all(after[name] is names[name] for name in names)
        unfuse(model)
        assert torch.equal(model(**inputs).logits, before)
        assert not any(isinstance(m, Joined) for m in model.modules())


def test_memory_is_not_doubled() -> None:
    model = fuse(model_of("llama"))
    op = model.decoder.layers[0].attention.op
    whole = op.qkv.whole.weight
    assert op.k.weight.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in model_of("llama").parameters())
    unfuse(model)
    assert op.k.weight.untyped_storage().nbytes() == op.k.weight.nbytes


def test_weights_changed_in_place_are_seen() -> None:
    model, other, inputs = fuse(model_of("llama")), model_of("llama"), inputs_of("llama")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
        model.load_state_dict(other.state_dict())
        close(model(**inputs).logits, other(**inputs).logits)


def test_cast_and_copy() -> None:
    model, inputs = fuse(model_of("llama")), inputs_of("llama")
    with torch.no_grad():
        expected = unfuse(copy.deepcopy(model)).double()(**inputs).logits
        close(model.double()(**inputs).logits, expected, 1e-12)
        op = model.decoder.layers[0].attention.op
        assert op.q.weight.data_ptr() == op.qkv.whole.weight.data_ptr(), "memory is shared again after the cast"
        twin = copy.deepcopy(model)
        twin.decoder.layers[0].attention.op.q.weight.zero_()
        close(model(**inputs).logits, expected, 1e-12)


def test_training_goes_on() -> None:
    plain, fused, inputs = model_of("llama"), fuse(model_of("llama")), inputs_of("llama")
    losses = [m(**inputs, labels=inputs["input_ids"]).loss for m in (plain, fused)]
    for loss in losses:
        loss.backward()
    for (name, a), (_, b) in zip(plain.named_parameters(), fused.named_parameters(), strict=True):
        assert a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad), name


def test_a_layer_replaced_later_is_used() -> None:
    """If q is replaced after fusing, for example by an adapter, the fused product is not used."""
    model, inputs = fuse(model_of("llama")), inputs_of("llama")
    op = model.decoder.layers[0].attention.op
    with torch.no_grad():
        before = model(**inputs).logits
        op.q = torch.nn.Sequential(op.q, torch.nn.Tanh())
        after = model(**inputs).logits
        assert float((after - before).abs().max()) > 1e-3
        op.qkv = None
        assert torch.equal(model(**inputs).logits, after)


def test_save_and_load(tmp_path) -> None:
    model, inputs = fuse(model_of("gpt2")), inputs_of("gpt2")
    af.save(model, tmp_path)
    with torch.no_grad():
        close(af.load(tmp_path)(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_cached_and_compiled_steps(family: str) -> None:
    model, inputs = model_of(family), inputs_of(family)
    ids = inputs["input_ids"]
    expected = af.generate(model, input_ids=ids, max_new_tokens=6, eos_token_id=None)
    fuse(model)
    assert torch.equal(af.generate(model, input_ids=ids, max_new_tokens=6, eos_token_id=None), expected)
    with torch.no_grad():
        model = fuse(model_of(family, depth=1))
        eager = model(**inputs).logits
        torch._dynamo.reset()
        close(torch.compile(model, fullgraph=True, backend="aot_eager")(**inputs).logits, eager)


def test_patterns() -> None:
    model = fuse(model_of("llama"), "*.attention.op")
    assert model.decoder.layers[0].attention.op.qkv is not None
    assert model.decoder.layers[0].feedforward.op.gate_up is None
    with pytest.raises(ValueError, match="attention or gated feed-forward matches 'decoder.layer'"):
        fuse(model, "decoder.layer")


def test_before_and_after_int8() -> None:
    ids = inputs_of("llama")
    with torch.no_grad():
        expected = quantize(model_of("llama"))(**ids).logits
        for model in (fuse(quantize(model_of("llama"))), quantize(fuse(model_of("llama")))):
            assert model.decoder.layers[0].feedforward.op.gate_up is not None
            close(model(**ids).logits, expected)


@pytest.mark.parametrize("family", CONFIGS)
def test_training_together(family: str) -> None:
    """Fused only in training: loss and gradients are equal, each layer keeps its own gradient, and no weights move."""
    alone, together = model_of(family), model_of(family)
    storage = {name: p.data_ptr() for name, p in together.named_parameters()}
    fuse(together, training=True)
    calls: list[int] = []
    joined = [m for m in together.modules() if isinstance(m, Joined)]
    for module in joined:
        module.register_forward_hook(lambda *_: calls.append(1))
    for model in (alone, together):
        model(**inputs_of(family)).logits.square().mean().backward()
    assert len(calls) == len(joined) > 0
    for (name, a), (_, b) in zip(alone.named_parameters(), together.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None and b.grad is not None:
            close(b.grad, a.grad)
    assert storage == {name: p.data_ptr() for name, p in together.named_parameters()}
    with torch.no_grad():
        assert torch.equal(together(**inputs_of(family)).logits, alone(**inputs_of(family)).logits)
    assert len(calls) == len(joined), "used without gradients"
    assert all(type(m) is Joined for m in fuse(together).modules() if isinstance(m, Joined))
