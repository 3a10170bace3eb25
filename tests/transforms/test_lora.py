"""LoRA on any family: outputs do not change at first, only adapters are trained; merging, saving and loading."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.objectives.causal import NextToken
from anyformer.specs.codec import decode, encode
from anyformer.transforms import lora
from anyformer.transforms.fuse import fuse
from anyformer.transforms.lora import LoRA
from anyformer.transforms.pack import pack
from anyformer.transforms.quantize import quantize
from small import close
from tiny import CONFIGS, inputs_of, model_of

WIDE = LoRA(rank=2, alpha=6.0, targets=("*.q", "*.v", "*.up"))


def logits(model: Any, family: str) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs_of(family)).logits


@torch.no_grad()
def trained(model: Any) -> Any:
    generator = torch.Generator().manual_seed(4)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


@pytest.mark.parametrize("family", CONFIGS)
def test_nothing_changes_at_first_and_only_adapters_learn(family: str) -> None:
    model = model_of(family)
    before = logits(model, family)
    assert lora.apply(model, WIDE) is model
    assert torch.equal(logits(model, family), before)
    model(**inputs_of(family)).logits.square().sum().backward()
    names = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert names and all(name.endswith(("lora_a", "lora_b")) for name in names)
    assert names == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    layers = {name.rpartition(".")[0] for name in names}
    assert {layer.rpartition(".")[2] for layer in layers} == {"q", "v", "up"} and len(layers) * 2 == len(names)
    assert all(model.get_parameter(f"{layer}.lora_b").grad.any() for layer in layers)


@pytest.mark.parametrize("family", CONFIGS)
def test_an_adapter_is_what_the_paper_says(family: str) -> None:
    """W + alpha / rank B A in every target layer."""
    model = trained(lora.apply(model_of(family), WIDE))
    plain = model_of(family)
    for address, layer in lora.adapted_layers(model).items():
        assert layer.lora_a.shape == (2, layer.in_features) and layer.lora_b.shape == (layer.out_features, 2)
        with torch.no_grad():
            plain.get_parameter(f"{address}.weight").add_(3.0 * layer.lora_b @ layer.lora_a)
    close(logits(model, family), logits(plain, family), 2e-6)


@pytest.mark.parametrize("family", CONFIGS)
def test_merge_and_unmerge(family: str) -> None:
    model = model_of(family)
    addresses, before = set(model.state_dict()), logits(model, family)
    after = logits(trained(lora.apply(model, WIDE)), family)
    assert (after - before).abs().max() > 0.01
    lora.merge(model)
    assert set(model.state_dict()) == addresses and not lora.adapted_layers(model)
    assert all(p.requires_grad == q.requires_grad for p, q in zip(model.parameters(), model_of(family).parameters()))
    close(logits(fuse(model), family), after, 2e-6)  # a plain model, so it can be fused
    lora.unmerge(model)
    close(logits(model, family), after, 2e-6)
    with torch.no_grad():
        for layer in lora.adapted_layers(model).values():
            layer.lora_b.zero_()
    close(logits(model, family), before, 2e-6)
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {
        f"{address}.{name}" for address in lora.adapted_layers(model) for name in lora.NAMES
    }


def test_unmerge_trains_what_was_trained_before() -> None:
    """The adapters and the parameters of every pattern in `also`, and nothing else."""
    also = ("*.norm.*", "embedding.tokens.weight")
    model = lora.apply(model_of("llama"), WIDE.replace(also=also))
    before = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {"decoder.norm.weight", "embedding.tokens.weight"} < before
    lora.unmerge(lora.merge(model))
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == before


@pytest.mark.parametrize("family", CONFIGS)
def test_saved_with_live_adapters_as_a_plain_model(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = trained(lora.apply(model_of(family), WIDE))
    after = logits(model, family)
    for layout in ("anyformer", "hf"):
        af.save(model, tmp_path / layout, format=layout)
        close(logits(af.load(tmp_path / layout), family), after, 2e-6)
    theirs = getattr(transformers, CONFIGS[family]["architectures"][0]).from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        close(theirs(**inputs_of(family)).logits, after, 1e-5)
    assert lora.adapted_layers(model) and torch.equal(logits(model, family), after)  # saving changed nothing


def test_one_seed_one_start_whatever_else_is_there() -> None:
    a, b = (lora.apply(model_of("gpt2"), WIDE.replace(targets=t), seed=3) for t in (("*.q",), ("*.q", "*.down")))
    for address, layer in lora.adapted_layers(a).items():
        assert torch.equal(layer.lora_a, b.get_parameter(f"{address}.lora_a"))
        bound = layer.in_features**-0.5
        assert layer.lora_a.abs().max() <= bound and layer.lora_a.std() > 0.4 * bound
    other = lora.apply(model_of("gpt2"), WIDE, seed=4)
    assert not torch.equal(other.decoder.layers[0].attention.op.q.lora_a, a.decoder.layers[0].attention.op.q.lora_a)


def test_dropout_is_of_the_adapter_alone_and_of_training_alone() -> None:
    model = trained(lora.apply(model_of("llama"), WIDE.replace(dropout=0.5)))
    assert torch.equal(logits(model, "llama"), logits(model, "llama"))
    layer = model.decoder.layers[0].attention.op.q.train()
    x = torch.randn(4, 3, layer.in_features)
    plain = torch.nn.functional.linear(x, layer.weight, layer.bias)
    torch.manual_seed(0)
    mean = sum(layer(x) - plain for _ in range(3000)) / 3000
    close(mean, layer.eval()(x) - plain, 0.06)


def test_a_head_with_an_adapter_learns_through_the_chunked_loss() -> None:
    """Llama's head is not tied: the adapter must be in the scores that training computes."""
    model = trained(lora.apply(model_of("llama"), LoRA(rank=2, targets=("head.out",))))
    batch, objective = inputs_of("llama"), NextToken()
    loss = objective.losses(model, batch)["loss"]
    close(loss / objective.weights(batch)["loss"], model(**batch, labels=batch["input_ids"]).loss, 1e-5)
    loss.backward()
    assert model.head.out.lora_a.grad.any() and model.head.out.lora_b.grad.any() and model.head.out.weight.grad is None


def test_trains_under_compile() -> None:
    model = trained(lora.apply(model_of("gpt2"), WIDE))
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found, eager = (run(**inputs_of("gpt2")).logits for run in (compiled, model))
    close(found, eager, 1e-6)
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for a, b in zip(*(torch.autograd.grad(out.square().sum(), adapters) for out in (found, eager)), strict=True):
        close(a, b, 1e-6)


def test_with_other_transforms() -> None:
    model = fuse(model_of("llama"))
    lora.apply(pack(model), WIDE)  # unpacked and unfused again: a fused product would skip the adapters
    after = logits(trained(model), "llama")
    close(logits(fuse(model), "llama"), after, 1e-6)
    close(logits(quantize(lora.merge(model), exact=True), "llama"), after, 0.05)


def test_mistakes_are_one_line() -> None:
    model = model_of("gpt2")
    for part, why in [(LoRA(targets=("*.qq",)), r"no linear layer matches '\*.qq'"),
                      (LoRA(targets=("head.out",)), "head.out shares its weights with another layer"),
                      (LoRA(also=("head.x",)), "no parameter matches 'head.x'")]:  # fmt: skip
        with pytest.raises(ValueError, match=why):
            lora.apply(model, part)
        assert all(parameter.requires_grad for parameter in model.parameters())  # nothing half done
    for function, why in [(lora.merge, "no adapters"), (lora.unmerge, "no merged adapters")]:
        with pytest.raises(ValueError, match=why):
            function(model)
    lora.apply(model, WIDE)
    with pytest.raises(ValueError, match="has adapters already"):
        lora.apply(model, WIDE)
    for wrong in ({"rank": 0}, {"alpha": 0.0}, {"dropout": 1.0}, {"targets": ()}):
        with pytest.raises(ValueError, match=f"LoRA.{next(iter(wrong))}"):
            LoRA(**wrong)


def test_json_round_trip() -> None:
    assert decode(json.loads(json.dumps(encode(WIDE)))) == WIDE


@torch.no_grad()
def test_a_copy_of_an_adapted_model_is_independent() -> None:
    """Deep copies and pickles have adapters too, and use their own weights; the layers keep their hooks."""
    model, called = model_of("gpt2"), Called()
    layer = model.decoder.layers[0].attention.op.q
    layer.register_forward_hook(called)
    trained(lora.apply(model, WIDE))
    assert model.decoder.layers[0].attention.op.q is layer
    expected = logits(model, "gpt2")
    assert called.count == 1
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(logits(other, "gpt2"), expected)
        close(logits(lora.merge(other), "gpt2"), expected, 1e-5)
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(logits(model, "gpt2"), expected)


class Called:
    """A hook that counts its calls and can be copied."""

    count = 0

    def __call__(self, *_: object) -> None:
        self.count += 1
