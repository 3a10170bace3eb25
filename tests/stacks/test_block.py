"""Norm placement and the order of steps, against torch.nn's layers or, without one, the formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.linear import LinearAttention
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.mask import Causal
from anyformer.parts.norm import LayerNorm, RMSNorm
from anyformer.parts.position.bias import Alibi, DistanceBias, RelativeVectors
from anyformer.parts.residual import ADD, ReZero, Scaled
from anyformer.parts.unused import Unused
from anyformer.runtime.context import Memory
from anyformer.specs.part import Site
from anyformer.stacks.block import Block, Parallel
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from small import close, compiled_equals_eager, context, filled, made

D, H, T = 24, 4, 9
NORM = LayerNorm(eps=1e-5)


def placed(where: str, steps: dict[str, Any] | None = None, residual: Any = ADD) -> Block:
    """Return a Block of attention and feed-forward with this norm placement."""
    names = {"post": ["out_norm"], "pre": ["pre_norm"], "sandwich": ["pre_norm", "post_norm"], "none": []}[where]
    ops = steps or {"attention": Attention(num_heads=H), "feedforward": MLP(width=40, activation="relu")}
    norms = dict.fromkeys(names, NORM)
    return Block(**{name: Sublayer(op=op, residual=residual, **norms) for name, op in ops.items()})


def from_torch(layer: nn.Module, where: str, cross: bool = False) -> dict[str, Tensor]:
    """Return the weights of a torch layer under our names."""
    norm = "out_norm" if where == "post" else "pre_norm"
    theirs, ours = layer.state_dict(), {}
    attentions = {"attention": "self_attn", **({"cross": "multihead_attn"} if cross else {})}
    for name, full in attentions.items():
        for kind in ("weight", "bias"):
            for letter, piece in zip("qkv", theirs[f"{full}.in_proj_{kind}"].chunk(3)):
                ours[f"{name}.op.{letter}.{kind}"] = piece
            ours[f"{name}.op.o.{kind}"] = theirs[f"{full}.out_proj.{kind}"]
    for number, name in enumerate([*attentions, "feedforward"], start=1):
        for kind in ("weight", "bias"):
            ours[f"{name}.{norm}.{kind}"] = theirs[f"norm{number}.{kind}"]
    for number, name in ((1, "up"), (2, "down")):
        for kind in ("weight", "bias"):
            ours[f"feedforward.op.{name}.{kind}"] = theirs[f"linear{number}.{kind}"]
    return ours


@pytest.mark.parametrize("where", ["post", "pre"])
@pytest.mark.parametrize("padded", [False, True])
def test_block_equals_torch_encoder_layer(where: str, padded: bool) -> None:
    theirs = nn.TransformerEncoderLayer(D, H, 40, dropout=0.0, batch_first=True, norm_first=where == "pre")
    filled(theirs).train()  # no fast path
    ours = placed(where).build(Site(width=D, address="block"))
    ours.load_state_dict(from_torch(theirs, where))
    x, real = torch.randn(2, T, D), torch.ones(2, T, dtype=torch.bool)
    real[1, 6:] = not padded
    out = ours(x, context(T, is_token=real if padded else None))
    close(out[real], theirs(x, src_key_padding_mask=~real if padded else None)[real])


@pytest.mark.parametrize("where", ["post", "pre"])
def test_block_equals_torch_decoder_layer(where: str) -> None:
    theirs = nn.TransformerDecoderLayer(D, H, 40, dropout=0.0, batch_first=True, norm_first=where == "pre")
    filled(theirs).train()
    steps = {
        "attention": Attention(num_heads=H, mask=Causal()), "cross": Attention(num_heads=H, memory=True),
        "feedforward": MLP(width=40, activation="relu"),
    }  # fmt: skip
    ours = placed(where, steps).build(Site(width=D, address="block"))
    ours.load_state_dict(from_torch(theirs, where, cross=True))
    x, memory, real = torch.randn(2, T, D), torch.randn(2, 5, D), torch.ones(2, 5, dtype=torch.bool)
    real[0, 3:] = False
    causal = nn.Transformer.generate_square_subsequent_mask(T)
    expected = theirs(x, memory, tgt_mask=causal, memory_key_padding_mask=~real)
    close(ours(x, context(T, memory=Memory(memory, real))), expected)


@pytest.mark.parametrize("norm", [None, NORM])
def test_stack_equals_torch_encoder(norm: Any) -> None:
    layer = nn.TransformerEncoderLayer(D, H, 40, dropout=0.0, batch_first=True, norm_first=True)
    final = nn.LayerNorm(D) if norm else None
    theirs = filled(nn.TransformerEncoder(layer, 3, norm=final, enable_nested_tensor=False)).train()
    ours = Stack(layers=placed("pre"), depth=3, norm=norm).build(Site(width=D, address="encoder"))
    for mine, published in zip(ours.layers, theirs.layers):
        mine.load_state_dict(from_torch(published, "pre"))
    if final is not None:
        ours.norm.load_state_dict(theirs.norm.state_dict())
    x = torch.randn(2, T, D)
    close(ours(x, context(T))[0], theirs(x))


def test_every_placement_is_its_formula() -> None:
    x, ctx, part = torch.randn(2, T, D), context(T), MLP(width=40)
    norms = {name: RMSNorm(eps=1e-3) for name in ("pre_norm", "post_norm", "out_norm")}
    cases: dict[tuple[str, ...], Any] = {
        (): lambda s: x + s.op(x, ctx),
        ("pre_norm",): lambda s: x + s.op(s.pre_norm(x), ctx),
        ("out_norm",): lambda s: s.out_norm(x + s.op(x, ctx)),
        ("post_norm",): lambda s: x + s.post_norm(s.op(x, ctx)),
        ("pre_norm", "post_norm"): lambda s: x + s.post_norm(s.op(s.pre_norm(x), ctx)),  # sandwich
        ("pre_norm", "post_norm", "out_norm"): lambda s: s.out_norm(x + s.post_norm(s.op(s.pre_norm(x), ctx))),
    }
    for names, formula in cases.items():
        step = made(Sublayer(op=part, **{name: norms[name] for name in names}), D)
        close(step(x, ctx), formula(step))
        assert {name for name, child in step.named_children() if child is not None} >= set(names)
    deep = made(Sublayer(op=part, residual=Scaled(skip=1.9), out_norm=NORM), D)  # DeepNorm
    close(deep(x, ctx), deep.out_norm(1.9 * x + deep.op(x, ctx)))
    zero = made(Sublayer(op=part, residual=ReZero()), D)
    close(zero(x, ctx), x + zero.residual.weight * zero.op(x, ctx))
    half = made(Sublayer(op=part, residual=Scaled(branch=0.5), pre_norm=NORM), D)  # the Conformer's
    close(half(x, ctx), x + 0.5 * half.op(half.pre_norm(x), ctx))


def test_parallel_equals_gpt_neox() -> None:
    """x + attention(norm1(x)) + mlp(norm2(x)) with use_parallel_residual; otherwise one after the other."""
    x, ctx = torch.randn(2, T, D), context(T)
    steps = dict(placed("pre").items())
    both = made(Parallel(**steps), D)
    a, f = both.attention, both.feedforward
    close(both(x, ctx), x + a.op(a.pre_norm(x), ctx) + f.op(f.pre_norm(x), ctx))
    inside = made(Block(both=Parallel(**steps), after=Sublayer(op=MLP(width=8))), D)
    middle = inside.both(x, ctx)
    close(inside(x, ctx), middle + inside.after.op(middle, ctx))
    assert "both.attention.op.q.weight" in inside.state_dict()


def test_steps_side_by_side_join_by_their_own_residuals() -> None:
    x, ctx = torch.randn(2, T, D), context(T)
    both = made(Parallel(a=Sublayer(op=MLP(width=8), residual=ReZero()), b=Sublayer(op=MLP(width=8), residual=Scaled(
        branch=0.5))), D)  # fmt: skip
    close(both(x, ctx), x + both.a.residual.weight * both.a.op(x, ctx) + 0.5 * both.b.op(x, ctx))
    cross = Sublayer(op=Attention(num_heads=H, memory=True))
    both = made(Parallel(cross=cross, b=Sublayer(op=MLP(width=8))), D)
    close(both(x, ctx), x + both.b.op(x, ctx))  # cross-attention without a memory is skipped here too
    for step in (Sublayer(op=MLP(width=8), out_norm=NORM), Parallel(a=cross), Block(a=cross)):
        with pytest.raises(ValueError, match="Parallel.a: "):
            Parallel(a=step)


def test_layers_share_a_bias_that_they_can_use() -> None:
    layer, linear = placed("pre"), Block(a=Sublayer(op=LinearAttention(num_heads=H)))
    for layers, position, line in (
        (layer, RelativeVectors(before=3), "layers cannot share RelativeVectors"),
        (layer, DistanceBias(before=3, num_heads=H, tree=True), "layers cannot share DistanceBias"),
        (layer, Alibi(num_heads=H + 1), f"Stack.position has {H + 1} heads, .*layers.* {H}"),
        (linear, Alibi(num_heads=H), "Stack.position.*no layer has Attention"),
        (
            Block(a=Sublayer(op=Unused(part=Attention(num_heads=H)))),
            Alibi(num_heads=H),
            "Stack.position.*no layer has Attention",
        ),
    ):
        with pytest.raises(ValueError, match=line):
            Stack(layers=layers, depth=1, position=position)
    with pytest.raises(ValueError, match="Stack.position.*no layer has Attention"):  # it never runs
        Stack(layers={"a": layer, "b": linear}, pattern=("b", "a"), depth=1, position=Alibi(num_heads=H))
    mixed = Stack(layers={"a": layer, "b": linear}, pattern=("a", "b"), depth=2, position=Alibi(num_heads=H))
    assert made(mixed, D)(torch.randn(2, T, D), context(T))[0].isfinite().all()


def test_a_pattern_puts_kinds_of_layers_in_order() -> None:
    kinds = {"a": placed("pre"), "b": placed("post")}
    stack = Stack(layers=kinds, depth=5, pattern=("a", "a", "b"))
    module = stack.build(Site(width=D, address="encoder"))
    shown = ["a" if layer.attention.pre_norm is not None else "b" for layer in module.layers]
    assert shown == ["a", "a", "b", "a", "a"] and stack.layer(2) == kinds["b"]


def test_dropout_and_drop_path_only_in_training() -> None:
    x, ctx = torch.randn(400, 2, D), context(2)
    step = made(Sublayer(op=MLP(width=8), dropout=0.3), D)
    close(step(x, ctx), x + step.op(x, ctx))
    branch = step.train().branch(x, ctx)
    assert (branch == 0).float().mean() == pytest.approx(0.3, abs=0.03)
    shares = []
    for layer in range(3):  # grows linearly to the last layer
        path = made(Sublayer(op=MLP(width=8), drop_path=0.6), D, layer=layer, depth=3).train()
        branch = path.branch(x, ctx)
        whole = (branch == 0).flatten(1).all(1)
        assert torch.equal(whole, (branch == 0).flatten(1).any(1)), "drop_path must drop the whole branch of an example"
        shares.append(float(whole.float().mean()))
        kept = ~whole
        close(branch[kept], path.op(x, ctx)[kept] / (1 - 0.6 * layer / 2))
    assert shares == pytest.approx([0.0, 0.3, 0.6], abs=0.08)


def test_layer_drop() -> None:
    stack = made(Stack(layers=placed("pre"), depth=2, layer_drop=0.5), D)
    x, ctx = torch.randn(1, T, D), context(T)
    torch.manual_seed(0)
    seen = {round(float(stack.train()(x, ctx)[0].detach().sum()), 3) for _ in range(60)}
    assert len(seen) == 4, "none, first, second or both"
    assert round(float(stack.eval()(x, ctx)[0].detach().sum()), 3) in seen


def test_one_graph() -> None:
    stacks = [made(Stack(layers=placed(where), depth=1, norm=NORM), D) for where in ("post", "pre", "sandwich", "none")]
    compiled_equals_eager(lambda x: [stack(x, context(T))[0] for stack in stacks], torch.randn(2, T, D))


def test_nonsense() -> None:
    op = MLP(width=4)
    for make, line in (
        (lambda: Sublayer(op=op, dropout=1.0), r"Sublayer.dropout is 1.0; it must be in \[0, 1\)"),
        (lambda: Sublayer(op=op, drop_path=-0.1), "Sublayer.drop_path is -0.1"),
        (lambda: Stack(layers=placed("pre"), depth=-1), "Stack.depth is -1"),
        (lambda: Stack(layers=placed("pre"), depth=1, layer_drop=2.0), "Stack.layer_drop is 2.0"),
        (lambda: Stack(layers={"a": placed("pre")}, depth=1), "Stack.pattern: .*several kinds"),
        (lambda: Stack(layers=placed("pre"), depth=1, pattern=("a",)), "Stack.pattern: .*one Block"),
        (lambda: Stack(layers={"local": placed("pre")}, depth=1, pattern=("locl",)), "did you mean 'local'"),
        (lambda: Block(attention=op), "Block.attention: expected a Sublayer"),
    ):
        with pytest.raises(ValueError, match=line):
            make()


def test_cross_attention_is_passed_over_without_a_memory() -> None:
    step = made(Sublayer(op=Attention(num_heads=H, memory=True), pre_norm=NORM), D)
    x = torch.randn(1, T, D)
    assert torch.equal(step(x, context(T)), x)
    assert not torch.equal(step(x, context(T, memory=Memory(torch.randn(1, 3, D)))), x)
