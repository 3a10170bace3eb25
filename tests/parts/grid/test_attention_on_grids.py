"""Attention in a bottleneck: HaloNet, stand-alone self-attention, non-local blocks, criss-cross attention. Each is
compared with its formula, computed pixel by pixel, and general forms with the special cases that they contain."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer import families
from anyformer.parts.attention.attention import Attention
from anyformer.parts.grid.convolution import Convolution, Convolutions, LayersDown, OpLayer, ResidualDown
from anyformer.parts.grid.halo import HaloAttention
from anyformer.parts.grid.local_relation import LocalRelation
from anyformer.parts.grid.non_local import CrissCross, NonLocal
from anyformer.parts.mask import Axial
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid
from anyformer.specs.part import Site

GRID = Grid(5, 7)


def context(grid: Grid = GRID) -> Context:
    index = torch.arange(math.prod(grid))
    return Context(index=index, positions=index[None], extras=(grid,))


def made(part: Any, width: int = 8) -> Any:
    torch.manual_seed(0)
    module = part.build(Site(width=width, address="op"))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.5)
    return module.eval()


def stream(grid: Grid = GRID, width: int = 8) -> Tensor:
    return torch.randn(2, math.prod(grid), width, generator=torch.Generator().manual_seed(1))


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# -- HaloNet and stand-alone self-attention ----------------------------------------------------------------------------


def by_hand(op: Any, x: Tensor, block: int, halo: int, step: int = 1) -> Tensor:
    """softmax(q (k + r)) v, pixel by pixel; r concatenates the vectors of the row and column distance."""
    q, k, v = (layer(x).view(2, *GRID, 2, -1) for layer in (op.q, op.k, op.v))
    found = []
    for row in range(0, GRID.rows, step):
        for column in range(0, GRID.columns, step):
            top, left = row // block * block, column // block * block
            near = [(i, j) for i in range(max(top - halo, 0), min(top + block + halo, GRID.rows))
                    for j in range(max(left - halo, 0), min(left + block + halo, GRID.columns))]  # fmt: skip
            middle = block + halo - 1
            r = [torch.cat((op.rows[i - row + middle], op.columns[j - column + middle])) for i, j in near]
            keys, values = (torch.stack([t[:, i, j] for i, j in near], 2) for t in (k, v))  # (B, H, near, K)
            weights = ((keys + torch.stack(r)) @ q[:, row, column, ..., None]).softmax(2)
            found.append((weights * values).sum(2).flatten(1))
    return torch.stack(found, 1)


@torch.no_grad()
@pytest.mark.parametrize(("block", "halo", "step"), [(1, 1, 1), (1, 3, 1), (2, 1, 1), (4, 2, 2), (3, 0, 1), (8, 3, 2)])
def test_halo_attention_place_by_place(block: int, halo: int, step: int) -> None:
    op = made(HaloAttention(num_heads=2, block=block, halo=halo, step=step, out=12, bias="qkv"))
    same(op(stream(), context()), by_hand(op, stream(), block, halo, step))


@torch.no_grad()
def test_layers_of_one_model_do_not_share_what_lies_over_the_edge() -> None:
    """Layers with different blocks or halos do not reuse each other's cached mask."""
    ctx = context()
    for block, halo in ((2, 1), (2, 2), (1, 1), (1, 2), (4, 0)):
        op = made(HaloAttention(num_heads=2, block=block, halo=halo, out=12, bias="qkv"))
        for _ in range(2):
            same(op(stream(), ctx), by_hand(op, stream(), block, halo))


@torch.no_grad()
def test_a_block_as_large_as_the_image_is_attention_to_all_of_it() -> None:
    op, whole = made(HaloAttention(num_heads=2, block=7, halo=2, relative=False)), made(Attention(num_heads=2, scale=1))
    for name in "qkv":
        getattr(whole, name).weight.copy_(getattr(op, name).weight)
        getattr(whole, name).bias.zero_()
    whole.o.weight.copy_(torch.eye(8))
    whole.o.bias.zero_()
    same(op(stream(), context()), whole(stream(), context()))


# -- all pixels, rows and columns --------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("pool", [1, 2])
@pytest.mark.parametrize("similarity", ["embedded", "gaussian", "product", "concatenation"])
def test_non_local_blocks_place_by_place(similarity: Any, pool: int) -> None:
    op, x = made(NonLocal(similarity=similarity, width=6, pool=pool, norm=None)), stream()
    seen = F.max_pool2d(x.mT.unflatten(2, GRID), pool, ceil_mode=True).flatten(2).mT
    found, M = [], seen.shape[1]
    for i in range(x.shape[1]):
        q, k = (x[:, i], seen) if similarity == "gaussian" else (op.q(x[:, i]), op.k(seen))
        if similarity == "concatenation":
            both = torch.cat((q[:, None].expand_as(k), k), -1)
            weights = F.relu(op.join(both)[..., 0]) / M
        else:
            scores = (k @ q[..., None])[..., 0]
            weights = scores / M if similarity == "product" else scores.softmax(-1)
        found.append((weights[..., None] * op.v(seen)).sum(1))
    same(op(x, context()), op.o(torch.stack(found, 1)))


def test_a_new_non_local_block_changes_nothing() -> None:
    """The weight of its norm is initialised to zero and gets a gradient."""
    tiny = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic", "num_labels": 3}
    spec = families.find("resnet").read(tiny).replace(family="", architecture="")
    spec = af.override(spec, {"encoder.stages.0.layers.convolutions.op": NonLocal()})
    model = af.build(spec, seed=0)
    run = af.trace(
        model, keep=["encoder.stages.0.layers.0.convolutions.branch"], pixel_values=torch.randn(2, 3, 32, 32)
    )
    assert not run["encoder.stages.0.layers.0.convolutions.branch"].any()
    run.output.logits.square().sum().backward()
    assert model.get_parameter("encoder.stages.0.layers.0.convolutions.op.norm.weight").grad.any()


@torch.no_grad()
@pytest.mark.parametrize("heads", [1, 2])
def test_criss_cross_attention_is_attention_to_a_row_and_a_column(heads: int) -> None:
    """Attention to R + C - 1 pixels gives the same result as masked attention to all N pixels."""
    op = made(CrissCross(num_heads=heads, reduction=2))
    mask = Axial(columns=GRID.columns)
    whole = made(Attention(num_heads=heads, head_width=4 // heads, value_width=8 // heads, scale=1, mask=mask))
    for name in "qkv":
        getattr(whole, name).load_state_dict(getattr(op, name).state_dict())
    whole.o.weight.copy_(torch.eye(8))
    whole.o.bias.zero_()
    same(op(stream(), context()), whole(stream(), context()))


# -- in a bottleneck ---------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("op", [
    LocalRelation(num_heads=2, size=3, step=2), HaloAttention(num_heads=2, block=2, halo=1, step=2),
], ids=lambda op: type(op).__name__)  # fmt: skip
def test_a_step_is_every_so_many_places_of_all(op: Any) -> None:
    coarse, fine = made(op), made(op.replace(step=1))
    fine.load_state_dict(coarse.state_dict())
    everywhere = fine(stream(), context()).unflatten(1, GRID)
    same(coarse(stream(), context()), everywhere[:, ::2, ::2].flatten(1, 2))


@torch.no_grad()
def test_an_op_among_convolutions() -> None:
    """1 x 1, op, mean of 2 x 2, norm, activation, 1 x 1; incomplete windows at the edges are averaged too."""
    attention = OpLayer(op=HaloAttention(num_heads=2, halo=1), pool=2)
    part = ResidualDown(
        width=8, layers=(Convolution(kernel=1, width=4), attention, Convolution(kernel=1)),
        skip=Convolution(kernel=1, stride=2),
    )  # fmt: skip
    module = made(part, width=6)
    found, grid = module(stream(width=6), GRID, context())
    first, middle, last = module.layers
    x = middle.op(first(stream(width=6), GRID)[0], context()).unflatten(1, GRID)
    means = [x[:, i : i + 2, j : j + 2].mean((1, 2)) for i in range(0, 5, 2) for j in range(0, 7, 2)]
    x = last(F.relu(middle.norm(torch.stack(means, 1))), Grid(3, 4))[0]
    same(found, F.relu(x + module.skip(stream(width=6), GRID)[0]))
    assert grid == part.coarser(GRID) == (3, 4)


REFUSED: list[tuple[Any, str]] = [
    (lambda: HaloAttention(num_heads=2, block=3, step=2), "it must divide the block of 3"),
    (lambda: HaloAttention(num_heads=2, bias="o"), "HaloAttention.bias is 'o'; .*'qkv'"),
    (lambda: made(HaloAttention(num_heads=8)), "even head width, got 1"),
    (lambda: made(HaloAttention(num_heads=2, out=7)), "7 value channels"),
    (lambda: Convolutions(layers=(OpLayer(op=NonLocal(), pool=2), Convolution())), "ResidualDown"),
    (lambda: Convolutions(layers=(OpLayer(op=NonLocal()),)), "the last layer must be a Convolution"),
    (lambda: LayersDown(width=8, layers=()), "at least one layer"),
    (lambda: made(LayersDown(width=9, layers=(OpLayer(op=NonLocal()),))), "not LayersDown.width 9"),
    (lambda: af.build(af.override(af.spec("swin-tiny"), {
        "encoder.stages.0.layers.plain.attention.op.mixer": HaloAttention(num_heads=3)})), "ignores the seams"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "line"), REFUSED, ids=[line for _, line in REFUSED])
def test_what_does_not_fit_is_refused_in_one_line(make: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line) as error:
        make()
    assert "\n" not in str(error.value)


# -- the published sizes -----------------------------------------------------------------------------------------------

# millions of parameters
COUNTS = {
    "lr-net-26": 14.60, "lr-net-50": 23.37, "sasa-resnet-26": 10.33, "sasa-resnet-38": 14.17, "sasa-resnet-50": 18.02,
    "halonet-h0": 5.49, "halonet-h1": 8.08, "halonet-h2": 9.38,
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_bottlenecks_of_attention_count_as_published(name: str) -> None:
    """Within 1 % of the papers."""
    parameters, size = af.count(af.spec(name)).parameters, dict(families.names())[name].sizes[name]
    assert parameters / 1e6 == pytest.approx(COUNTS[name], abs=0.006)
    assert parameters == pytest.approx(size.published, rel=0.01)


def test_multiply_adds_of_lr_net() -> None:
    """4.0 G for products only; the paper prints 4.3 G. It prints 4.3 G for ResNet-50 too, which has 4.1 G."""
    assert af.count(af.spec("lr-net-50")).flops(1) / 2e9 == pytest.approx(4.008, abs=0.001)


@pytest.mark.parametrize("mixer", ["local_relation", "halo"])
def test_small_ones_learn_and_are_saved(mixer: str, tmp_path: Any) -> None:
    family = families.find("attention_resnet")
    config = {"mixer": mixer, "embedding_size": 8, "hidden_sizes": [16, 24], "bottleneck_sizes": [8, 8], "block": 1,
              "depths": [1, 2], "num_heads": [2, 2], "image_size": 24, "num_labels": 3, "neighbourhood": 3}  # fmt: skip
    spec = family.read(config)
    assert family.read({**family.recover(spec), "num_labels": 3}).replace(source={}) == spec.replace(source={})
    model = af.build(spec, seed=0)
    pixels = torch.randn(2, 3, 24, 24)
    out = model(pixels, labels=torch.tensor([0, 2]))
    out.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    af.save(model.eval(), tmp_path)
    assert torch.equal(af.load(tmp_path)(pixels).logits, model(pixels).logits)
    address = "encoder.down.1.layers.1.op.weights"
    assert af.trace(model, keep=[address], pixel_values=pixels)[address].sum(-1).allclose(torch.ones(()), atol=1e-5)
    with pytest.raises(ValueError, match="attention_resnet .*format='anyformer'"):
        af.save(model, tmp_path / "hf", format="hf")
    for wrong, line in (({"mixer": "hallo"}, "valid: local_relation, halo"), ({"depths": [1]}, "per stage"),
                        ({"depths": [1, 0]}, "depths is .*1, 0.* at least 1")):  # fmt: skip
        with pytest.raises(ValueError, match=line):
            family.read({**config, **wrong})
