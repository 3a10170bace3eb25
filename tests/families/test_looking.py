"""BEHAVIOUR.md, "Looking inside": every address of every family can be kept or changed, and tracing changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from catalogue import Case, close, graph, make_inputs, ours, over_catalogue, shared, structure
from torch import Tensor, nn

import anyformer as af
from anyformer.look.trace import addresses, main_tensor
from anyformer.parts.attention.big_bird import BlockSparseModule
from anyformer.parts.attention.longformer import LocalAttentionModule
from anyformer.parts.attention.nystrom import NystromAttentionModule
from anyformer.transforms.fuse import fuse

# mixers whose published weights are not one row of probabilities per token, and why
OTHER_WEIGHTS: dict[type, str] = {
    NystromAttentionModule: "a product with an approximate inverse, whose rows add up to about 1",
    BlockSparseModule: "blocks that are counted several times are shown once",
    LocalAttentionModule: "rows of padding and of global tokens are shown as zeros",
}


def run(case: Case, **options: Any) -> Any:
    with torch.no_grad():
        return af.trace(shared(case), **options, **make_inputs(case))


def plain(case: Case, **more: Any) -> Any:
    with torch.no_grad():
        return shared(case)(**make_inputs(case, **more))


def equal(one: Any, other: Any) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        pairs = zip(value, other[name], strict=True) if isinstance(value, tuple) else [(value, other[name])]
        for mine, theirs in pairs:
            if isinstance(mine, Tensor):
                assert torch.equal(mine, theirs), f"{name} is off by {(mine - theirs).abs().max():.1e}"


@contextmanager
def hooked(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the output of a module with a forward hook, without `af.trace`."""

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        value, put_back = main_tensor(output)
        assert value is not None
        return put_back(change(value))

    handle = module.register_forward_hook(hook)
    yield
    handle.remove()


def layers(model: Any) -> list[str]:
    """Return the first layer of every stack."""
    return [name for name, _ in model.named_modules() if name.endswith("layers.0") and ".op." not in name]


@over_catalogue("I1", everyday=structure)
def test_i1_everything_can_be_kept_and_nothing_changes(case: Case) -> None:
    traced = run(case, keep="*")
    equal(plain(case), traced.output)
    silent = [address for address in addresses(shared(case)) if address not in traced]
    assert silent == [], f"no value at {silent}"


@over_catalogue("I1", everyday=graph)
def test_i1_on_every_kernel_and_fused(case: Case) -> None:
    inputs = make_inputs(case)
    for change in ({"kernel": "eager"}, {"kernel": "sdpa"}, {"fused": True}):
        model = ours(case)
        if change.get("fused"):
            fuse(model)
        model.kernel = change.get("kernel", "auto")
        with torch.no_grad():
            equal(model(**inputs), af.trace(model, keep="**", **inputs).output)


@over_catalogue("I1", everyday=graph)
def test_i1_a_change_does_what_a_hook_does(case: Case) -> None:
    model = shared(case)
    other = run(case, keep=layers(model))
    torch.manual_seed(0)
    for address in layers(model):
        module, pasted = model.get_submodule(address), other[address]
        pasted = pasted[0] if isinstance(pasted, tuple) else pasted
        direction = torch.randn(pasted.shape[-1])
        for change in (lambda x: x + direction, lambda x: x.flip(0) * 0.5 + pasted.flip(1)):  # noqa: B023
            with hooked(module, change):
                expected = plain(case)
            found = run(case, change={address: lambda x, _: change(x)}).output  # noqa: B023
            equal(expected, found)
            before, after = (main_tensor(dict(output))[0] for output in (plain(case), expected))
            assert not torch.equal(before, after), "the change changed nothing"


def mixers(model: Any) -> list[str]:
    return sorted({address.removesuffix(".weights") for address, shown in model.shows.items() if shown == "attentions"
                   and address.endswith(".weights")})  # fmt: skip


@over_catalogue("I1", everyday=structure)
def test_i1_changed_weights_are_used(case: Case) -> None:
    model = shared(case)
    for address in mixers(model)[:1]:
        asked = f"{address}.weights"
        seen = run(case, keep=[asked, f"{address}.mixed"])
        copied = run(case, keep=[f"{address}.mixed"], change={asked: lambda x, _: x.clone()})
        values = [seen[f"{address}.mixed"], copied[f"{address}.mixed"]]
        first, second = (value[0] if isinstance(value, tuple) else value for value in values)
        close(second, first)  # the same weights, computed more slowly
        if isinstance(model.get_submodule(address), tuple(OTHER_WEIGHTS)):
            continue
        dropped = run(case, keep=[f"{address}.mixed"], change={asked: lambda x, _: torch.zeros_like(x)})
        value = dropped[f"{address}.mixed"]
        assert float((value[0] if isinstance(value, tuple) else value).abs().max()) == 0.0


@over_catalogue("I2", everyday=structure)
def test_i2_rows_of_weights_add_up_to_one(case: Case) -> None:
    model, inputs = shared(case), make_inputs(case)
    asked = [address for address in mixers(model) if not isinstance(model.get_submodule(address), tuple(OTHER_WEIGHTS))]
    if not asked:
        assert mixers(model) == [] or case.model_type in ("big_bird", "longformer", "nystromformer")
        return
    if "attention_mask" in model.inputs and "input_ids" in inputs and "N4" not in case.skip:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][0, ..., -3:] = 0
    with torch.no_grad():
        traced = af.trace(model, keep=[f"{address}.weights" for address in asked], **inputs)
    for address in asked:
        weights = traced[f"{address}.weights"]
        for each in weights if isinstance(weights, tuple) else (weights,):
            rows = each.sum(-1)
            assert bool(((rows - 1).abs() < 1e-5).logical_or(rows == 0).all()), address
            assert bool((each >= 0).all())
            reads_source = address.startswith("encoder") or not hasattr(model, "encoder")
            reads_source = reads_source and not address.startswith(
                "image."
            )  # with an image, a mask belongs to the text
            if "attention_mask" in inputs and reads_source and each.shape[0] == inputs["attention_mask"].shape[0]:
                if each.shape[-1] == inputs["attention_mask"].shape[-1]:
                    assert float(each[0, ..., -3:][..., :-3, :].abs().max()) == 0.0, f"{address} sees pads"


def test_patterns_and_mistakes() -> None:
    small = {"width": 32, "decoder.depth": 2, "embedding.tokens.vocab_size": 50, "head.vocab_size": 50}
    model = af.build(af.override(af.spec("gpt2"), {**small, "decoder.layers.attention.op.num_heads": 4})).eval()
    ids = torch.arange(6)[None]
    names = list(af.trace(model, keep="decoder.layers.*", input_ids=ids))
    assert names == ["decoder.layers.0", "decoder.layers.1"]
    assert list(af.trace(model, keep=["decoder.layers.1.**.weights"], input_ids=ids)) == [
        "decoder.layers.1.attention.op.weights"
    ]
    with pytest.raises(ValueError, match=r"'decoder\.layer\.0'; did you mean"):
        af.trace(model, keep=["decoder.layer.0"], input_ids=ids)
    with pytest.raises(ValueError, match=r"decoder\.layers\.0.*\(1, 6, 32\)"):
        af.trace(model, change={"decoder.layers.0": lambda x, _: x[:, :3]}, input_ids=ids)
    with pytest.raises(KeyError, match="nothing was kept at 'embedding'; valid: head"):
        af.trace(model, keep="head", input_ids=ids)["embedding"]
    assert not any(m._forward_hooks for m in model.modules())


def test_a_head_switched_off_is_a_head_without_output() -> None:
    small = {"width": 32, "decoder.depth": 2, "embedding.tokens.vocab_size": 50, "head.vocab_size": 50}
    model = af.build(af.override(af.spec("gpt2"), {**small, "decoder.layers.attention.op.num_heads": 4})).eval()
    ids, op = torch.arange(6)[None], model.decoder.layers[1].attention.op

    def off(weights: Tensor, address: str) -> Tensor:
        weights = weights.clone()
        weights[:, 2] = 0  # (B, H, T, S)
        return weights

    with torch.no_grad():
        found = af.trace(model, change={"decoder.layers.1.attention.op.weights": off}, input_ids=ids).output.logits
        for name in ("weight", "bias"):
            getattr(op.v, name)[2 * op.head_width : 3 * op.head_width] = 0
        close(found, model(input_ids=ids).logits, 1e-6)
