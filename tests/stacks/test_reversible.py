"""Reversible layers: formula, gradients against plain autograd, memory kept for the backward pass, and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.kernels import reversible
from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.lsh import LSHAttention
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.feedforward.moe import MoE
from anyformer.parts.feedforward.routers import TopK
from anyformer.parts.layer_mix import LayerMix
from anyformer.parts.mask import Causal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.relative import RelativeSinusoids
from anyformer.parts.recurrent.mamba import SelectiveState
from anyformer.parts.residual import Activated, Fixup, LayerScale, ReZero, Scaled
from anyformer.runtime.context import Memory
from anyformer.stacks.block import Block
from anyformer.stacks.reversible import Reversible
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from small import close, context, made, numbers

D, T = 16, 9
ATTENTION, FEED = Attention(num_heads=4, mask=Causal()), MLP(width=40)


def steps(*ops: Any, **more: Any) -> dict[str, Sublayer]:
    return {f"step{i}": Sublayer(op=op, pre_norm=LayerNorm(), **more) for i, op in enumerate(ops or (ATTENTION, FEED))}


def stack_of(depth: int = 3, norm: Any = None, *, layers: Any = None, **more: Any) -> Any:
    return made(Stack(layers=layers or Reversible(**steps(**more)), depth=depth, norm=norm), D)


def test_formula() -> None:
    """y1 = x1 + f(x2), y2 = x2 + g(y1). Both streams start as x, and the norm reads their concatenation."""
    stack, x, ctx = stack_of(2, LayerNorm()), numbers(2, T, D), context(T)
    one = two = x
    for layer in stack.layers:
        one = one + layer.step0.op(layer.step0.pre_norm(two), ctx)
        two = two + layer.step1.op(layer.step1.pre_norm(one), ctx)
    close(stack(x, ctx)[0], stack.norm(torch.cat((one, two), -1)))
    assert stack.norm.weight.shape == (2 * D,) and stack.part.out_width(D) == 2 * D


def test_an_odd_number_of_steps_goes_on_where_the_last_ended() -> None:
    stack, x, ctx = stack_of(2, layers=Reversible(**steps(ATTENTION, FEED, MLP(width=8)))), numbers(2, T, D), context(T)
    one = two = x
    for layer in stack.layers:
        for step in layer.children():
            one, two = two, one + step.op(step.pre_norm(two), ctx)
    close(stack(x, ctx)[0], torch.cat((one, two), -1))


def gradients(
    stack: Any, x: Tensor, monkeypatch: Any, keep: bool, half: bool = False
) -> tuple[Tensor, list[Tensor], int]:
    """Return the output, the gradients of x and all parameters, and the bytes that autograd saved besides weights."""
    held = {p.untyped_storage().data_ptr() for p in stack.parameters()}
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = x.clone().requires_grad_()
    with monkeypatch.context() as patch:
        if keep:
            patch.setattr("anyformer.stacks.stack.can_rewind", lambda *rest: False)
        torch.manual_seed(3)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t), torch.autocast("cpu", enabled=half):
            out, _ = stack.train()(x, context(T))
        loss = (out * numbers(*out.shape, seed=5)).sum()
        found = torch.autograd.grad(loss, [x, *stack.parameters()])
    return out, list(found), sum(sizes.values())


@pytest.mark.parametrize("more", [
    {}, {"dropout": 0.3}, {"drop_path": 0.5}, {"residual": ReZero()}, {"residual": Scaled(skip=0.7, branch=1.3)},
    {"residual": Fixup()}, {"residual": LayerScale()}, {"post_norm": LayerNorm()},
    {"layers": Reversible(**steps(SelectiveState(width=24), ATTENTION, FEED))},
    {"layers": {"one": Reversible(**steps(ATTENTION)), "two": Reversible(**steps(FEED.replace(dropout=0.2)))}},
    {"layers": Reversible(**steps(LSHAttention(num_heads=4, chunk=4, buckets=(4,), rotations="fresh"), FEED))},
], ids=lambda more: " ".join(f"{name}={type(value).__name__}" for name, value in more.items()) or "plain")  # fmt: skip
def test_gradients_are_those_of_plain_autograd(more: dict[str, Any], monkeypatch: Any) -> None:
    if isinstance(more.get("layers"), dict):
        stack = made(Stack(layers=more["layers"], pattern=("one", "two"), depth=4), D)
    else:
        stack = stack_of(**more)
    # a stream recomputed by subtraction differs in its last bits, and layers amplify the difference. It is relative to
    # the precision, so fp64 shows errors that are not rounding
    for dtype in (torch.float32, torch.float64):
        x = numbers(2, T, D).to(dtype)
        out, found, _ = gradients(stack.to(dtype), x, monkeypatch, keep=False)
        plain, expected, _ = gradients(stack, x, monkeypatch, keep=True)
        close(out, plain, 0)
        assert type(out.grad_fn).__name__ == "RewindFunctionBackward" != type(plain.grad_fn).__name__
        for a, b in zip(found, expected, strict=True):
            close(a, b, 32 * torch.finfo(dtype).eps)


def test_dropout_in_a_tensor_that_the_first_layer_computes_for_all(monkeypatch: Any) -> None:
    attention = ATTENTION.replace(position=RelativeSinusoids(num_heads=4, dropout=0.5))
    stack, x = stack_of(layers=Reversible(**steps(attention, FEED))).double(), numbers(2, T, D).double()
    out, found, _ = gradients(stack, x, monkeypatch, keep=False)
    plain, expected, _ = gradients(stack, x, monkeypatch, keep=True)
    for a, b in zip((out, *found), (plain, *expected), strict=True):
        close(a, b, 32 * torch.finfo(torch.float64).eps)


def test_under_autocast(monkeypatch: Any) -> None:
    stack = stack_of()
    _, found, _ = gradients(stack, numbers(2, T, D), monkeypatch, keep=False, half=True)
    _, expected, _ = gradients(stack, numbers(2, T, D), monkeypatch, keep=True, half=True)
    for a, b in zip(found, expected, strict=True):
        close(a, b, 2e-2)  # rounding of bf16 products; the stream is recomputed to 1e-7


def test_what_is_kept_does_not_grow_with_the_depth(monkeypatch: Any) -> None:
    """Only the last state is kept, and nothing per layer."""
    kept = {keep: [gradients(stack_of(depth), numbers(2, T, D), monkeypatch, keep)[2] for depth in (2, 8)]
            for keep in (False, True)}  # fmt: skip
    state = 2 * T * 2 * D * 4
    assert kept[False] == [state, state]
    assert kept[True][1] > 3.5 * kept[True][0] > 50 * state


def test_where_states_are_kept() -> None:
    """Layers that cannot be rewound run as plain layers, with correct gradients."""
    x, ctx = numbers(2, T, D), context(T)
    stack = stack_of().train()
    assert stack.rewinds(x, ctx) and not stack.rewinds(x.bfloat16(), ctx)
    with torch.no_grad():
        assert not stack.rewinds(x, ctx)
    assert not stack.eval().rewinds(x, ctx)
    memory = Memory(numbers(2, 5, D).requires_grad_())
    assert not stack.train().rewinds(x, ctx.replace(memory=memory))
    cross = stack_of(layers=Reversible(**steps(ATTENTION, Attention(num_heads=4, memory=True), FEED))).train()
    cross(x, ctx.replace(memory=memory))[0].sum().backward()
    assert memory.states.grad is not None and float(memory.states.grad.abs().max()) > 0
    alone = cross(x, ctx)[0]  # without a memory, cross-attention is skipped
    alone.sum().backward()
    experts = MoE(num_experts=2, router=TopK(top_k=1), expert=FEED)
    experts = stack_of(layers=Reversible(**steps(ATTENTION, experts))).train()
    assert not experts.rewinds(x, ctx)  # router losses are part of the loss
    mixed = made(Stack(layers=Reversible(**steps()), depth=2, neck=LayerMix(count=2)), D).train()
    assert not mixed.rewinds(x, ctx)


@pytest.mark.parametrize("build, line", [
    (lambda: Reversible(a=Sublayer(op=FEED, out_norm=LayerNorm())), "Reversible.a: .* use a Sublayer without out_norm"),
    (lambda: Reversible(a=Sublayer(op=FEED, residual=Activated())), r"a.residual: .* not reversible; Add\(\)"),
    (lambda: Reversible(a=Sublayer(op=FEED, residual=Scaled(skip=0.0))), "not reversible"),
    (lambda: Reversible(a=Block(b=Sublayer(op=FEED))), "Reversible.a: expected a Sublayer, got a Block"),
    (lambda: Stack(layers={"a": Reversible(**steps()), "b": Block(**steps())}, pattern=("a", "b"), depth=2), "some"),
])  # fmt: skip
def test_refused(build: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        build()


def test_learns() -> None:
    leaf = torch.zeros(2, requires_grad=True)
    assert reversible.has_gradient({"a": [(leaf,)]}) and not reversible.has_gradient({"a": [(leaf.detach(), 3)]})
