"""Streams on grids: pooled attention and its effect on a stack, positions on grids, and local relation layers. They are
compared with formulas and with special cases that change nothing; tests/families/test_mvit.py compares with MViT."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer.models import EncoderModel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.patches import PatchEmbedding, VideoEmbedding
from anyformer.parts.embedding.prefix import PrefixTokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.feedforward.moe import MoE
from anyformer.parts.feedforward.routers import TopK
from anyformer.parts.grid.local_relation import LocalRelation
from anyformer.parts.grid.merge import Merge
from anyformer.parts.grid.pooled_attention import GridPool, PooledAttention, Skip
from anyformer.parts.grid.windows import Windows
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.pooling import MeanTokens
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.bias import Alibi
from anyformer.parts.position.grid import AxialRope, GridBias, GridVectors, SeparableLearned
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid, KeyGrid, Volume, with_stride
from anyformer.specs.part import Site
from anyformer.stacks.block import Block, Parallel
from anyformer.stacks.stack import Stack
from anyformer.stacks.stages import Stages
from anyformer.stacks.step_kinds import NormedShortcut
from anyformer.stacks.sublayer import Sublayer
from small import close

GRID = Grid(4, 3)


def context(grid: Any = GRID, before: int = 0) -> Context:
    index = torch.arange(before + math.prod(grid))
    return Context(index=index, positions=index[None], extras=(grid,))


def made(part: Any, width: int = 8) -> Any:
    torch.manual_seed(0)
    module = part.build(Site(width=width, address="op"))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.5)
    return module.eval()


def stream(ctx: Context, width: int = 8) -> Tensor:
    return torch.randn(2, ctx.index.shape[0], width, generator=torch.Generator().manual_seed(1))


# -- pooled attention --------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_windows_of_one_place_are_plain_attention(kernel: str) -> None:
    """Pooling with kernel 1 and stride 1 changes nothing, by convolution, maximum or mean."""
    ctx = context(before=2).replace(kernel=kernel)
    alone = GridPool(kernel=(1, 1), stride=(1, 1))
    plain = made(Attention(num_heads=2))
    for by in ("convolution", "max", "mean"):
        pool = alone.replace(by=by)
        pooled = made(PooledAttention(num_heads=2, queries=pool, keys=pool))
        pooled.load_state_dict(plain.state_dict(), strict=False)
        for name in ("queries", "keys", "values") if by == "convolution" else ():
            getattr(pooled, name).convolution.weight.fill_(1.0)
        torch.testing.assert_close(pooled(stream(ctx), ctx), plain(stream(ctx), ctx))


@torch.no_grad()
@pytest.mark.parametrize("added", ["none", "rest", "all"])
def test_pooled_attention_place_by_place(added: Any) -> None:
    """Queries, keys and values of every window are computed one by one; the prefix token is not pooled."""
    ctx, x = context(before=1), stream(context(before=1))
    norm = LayerNorm(eps=1e-3)
    queries = GridPool(kernel=(3, 3), stride=(2, 2), norm=norm)
    keys = GridPool(kernel=(3, 1), stride=(1, 2), norm=norm)
    op = made(PooledAttention(num_heads=2, out=12, queries=queries, keys=keys, add_queries=added))

    def pooled(linear: Any, module: Any, part: GridPool) -> Tensor:
        heads = linear(x).view(2, 13, 2, 6)
        (down, right), (high, wide) = part.stride, part.kernel
        found = [heads[:, 0]]
        for row in range(0, 4, down):
            for column in range(0, 3, right):
                total = torch.zeros(2, 2, 6)
                for i in range(high):
                    for j in range(wide):
                        at = row + i - high // 2, column + j - wide // 2
                        if 0 <= at[0] < 4 and 0 <= at[1] < 3:
                            total += heads[:, 1 + at[0] * 3 + at[1]] * module.convolution.weight[:, 0, i, j]
                found.append(total)
        return module.norm(torch.stack(found, 2))  # (B, H, windows, K)

    q, k, v = pooled(op.q, op.queries, queries), pooled(op.k, op.keys, keys), pooled(op.v, op.values, keys)
    assert q.shape[2] == 1 + 2 * 2 and k.shape[2] == 1 + 4 * 2
    out = (q @ k.mT / 6**0.5).softmax(-1) @ v
    out = out + q * torch.tensor([added == "all"] + [added != "none"] * 4)[:, None]
    expected = op.o(out.transpose(1, 2).flatten(2))
    torch.testing.assert_close(op(x, ctx), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("added", ["none", "rest", "all"])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_pads_without_pooling(added: Any, kernel: str) -> None:
    """Without a grid: pads on either side are not visible, and the first token is the first real token."""
    op = made(PooledAttention(num_heads=2, add_queries=added))
    x, index = torch.randn(2, 7, 8), torch.arange(7)
    alone = op(x[:, 2:5], Context(index=index[:3], positions=index[None, :3], kernel=kernel))
    is_token = ((index >= 2) & (index < 5)).expand(2, 7)
    close(op(x, Context(index=index, positions=index[None], is_token=is_token, kernel=kernel))[:, 2:5], alone)


@torch.no_grad()
@pytest.mark.parametrize(
    ("grid", "keys"), [(GRID, None), (Grid(2, 3), GRID), (GRID, Grid(2, 3)), (Volume(2, 2, 3), None)], ids=str
)
def test_distances_along_each_side(grid: Any, keys: Any) -> None:
    """The bias is the sum over sides of q times the vector of the distance, measured on the finer grid."""
    position = made(GridVectors(size=(5,) * len(grid)), width=6)
    ctx = context(grid, before=1)
    ctx = ctx if keys is None else ctx.replace(KeyGrid(keys))
    q, keys = torch.randn(2, 3, 1 + math.prod(grid), 6), keys or grid
    _, found = position.bias(q, ctx.index, 1.0, ctx)
    assert found.shape == (2, 3, 1 + math.prod(grid), 1 + math.prod(keys))
    assert not found[:, :, 0].any() and not found[..., 0].any()
    names = ("frames", "rows", "columns")[-len(grid) :]
    queries, targets = (list(torch.cartesian_prod(*map(torch.arange, sides))) for sides in (grid, keys))
    for a, here in enumerate(queries):
        for b, there in enumerate(targets):
            expected = torch.zeros(2, 3)
            for side, name in enumerate(names):
                long = max(grid[side], keys[side])
                fine = [int(at[side]) * (long // n) for at, n in ((here, grid[side]), (there, keys[side]))]
                last = (keys[side] - 1) * (long // keys[side])
                table = getattr(position, name)
                if len(table) != 2 * long - 1:
                    table = F.interpolate(table.t()[None], size=2 * long - 1, mode="linear")[0].t()
                expected = expected + q[:, :, 1 + a] @ table[fine[0] - fine[1] + last]
            torch.testing.assert_close(found[:, :, 1 + a, 1 + b], expected, rtol=1e-5, atol=1e-5)


def test_a_stride_makes_a_coarser_grid() -> None:
    ctx = context(Volume(3, 5, 4), before=2)
    after = with_stride(ctx, (1, 2, 2))
    assert after.extras == (Volume(3, 3, 2),) and after.index.tolist() == list(range(2 + 18))
    assert with_stride(ctx, (1, 2, 2)) is after and with_stride(ctx, (1, 1, 1)) is ctx and with_stride(ctx, ()) is ctx


# -- streams that change their shape -----------------------------------------------------------------------------------

COARSER = PooledAttention(num_heads=2, queries=GridPool(kernel=(3, 3), stride=(2, 2)))
PATCHES = PatchEmbedding(image_size=(16, 12), patch_size=(4, 4), prefix=(PrefixTokens(),))


def model(*steps: Sublayer, depth: int = 1, **more: Any) -> Any:
    layer = Block(**{f"step_{i}": step for i, step in enumerate(steps)})
    stack = Stack(layers=layer, depth=depth, **more)
    return EncoderModel(width=8, embedding=PATCHES, encoder=stack, init={"*": Normal(std=0.3)})


@torch.no_grad()
def test_each_step_reads_the_grid_and_width_of_the_step_before() -> None:
    """The grid halves in every layer. The width grows only in the first; later inputs already have width `out`."""
    norm = LayerNorm()
    wider = NormedShortcut(op=MLP(width=12, out=20), skip=Skip(), pre_norm=norm, out_norm=norm)
    attention = Sublayer(op=PooledAttention(num_heads=2, keys=GridPool(kernel=(3, 3), stride=(2, 2))))
    spec = model(Sublayer(op=COARSER, skip=Skip(by="mean")), wider, attention, depth=2, norm=norm).replace(
        head=ClassifyHead(num_labels=3, pool=Pool(take=MeanTokens()))
    )
    built = af.build(spec).eval()
    assert spec.encoder.widths(8) == [8, 20, 20] and spec.encoder.out_width(8) == 20
    out = built(pixel_values=torch.randn(2, 3, 16, 12), output_hidden_states=True, output_attentions=True)
    assert [tuple(state.shape) for state in out.hidden_states] == [(2, 13, 8), (2, 5, 20), (2, 2, 20)]
    assert [tuple(weights.shape[2:]) for weights in out.attentions] == [(5, 13), (5, 2), (2, 5), (2, 2)]
    assert out.logits.shape == (2, 3)
    first, second = (built.encoder.layers[i].step_1 for i in range(2))
    assert first.skip.project.weight.shape == (20, 8) and second.skip.project is None
    assert af.count(spec).parameters == sum(p.numel() for p in built.parameters())


@torch.no_grad()
def test_the_skip_is_the_maximum_of_each_window() -> None:
    spec = model(Sublayer(op=COARSER, skip=Skip()))
    built = af.build(spec).eval()
    built.encoder.layers[0].step_0.op.o.weight.zero_()  # the branch adds nothing
    out = built(pixel_values=torch.randn(2, 3, 16, 12), output_hidden_states=True)
    x, found = out.hidden_states[0], out.last_hidden_state
    assert torch.equal(found[:, 0], x[:, 0])
    grid = F.pad(x[:, 1:].view(2, 4, 3, 8), (0, 0, 1, 1, 1, 1), value=-math.inf)
    expected = [grid[:, i : i + 3, j : j + 3].amax((1, 2)) for i in (0, 2) for j in (0, 2)]
    assert torch.equal(found[:, 1:], torch.stack(expected, 1))


TURN = Sublayer(op=COARSER, skip=Skip())
PLAIN = Block(plain=Sublayer(op=MLP(width=8)))
EXPERTS = {"router": TopK(top_k=1), "num_experts": 2}
FINE, SMALL = GridPool(kernel=(3, 3), stride=(1, 1)), {"image_size": (8, 8), "patch_size": (4, 4)}
REFUSED: list[tuple[Any, str]] = [
    (lambda: Sublayer(op=COARSER), r"Sublayer.skip: PooledAttention .*set skip=Skip\(\)"),
    (lambda: Sublayer(op=MLP(width=8), skip=Skip()), r"Sublayer.skip is Skip\(.*MLP.*set skip=None"),
    (lambda: Parallel(a=TURN, b=TURN), "Parallel.a: .* does not change the width or grid"),
    (lambda: Sublayer(op=MoE(expert=MLP(width=8, out=4), **EXPERTS)), "Sublayer.op.expert: this MLP changes"),
    (lambda: Sublayer(op=Windows(mixer=COARSER, size=2)), "Windows.mixer: PooledAttention "),
    (lambda: Sublayer(op=Windows(mixer=LocalRelation(num_heads=1), size=2)), "Windows.mixer: LocalRelation "),
    (lambda: Stack(layers=Block(a=TURN), depth=2, order=(0, 1, 0)), "Stack.order: .*change the width"),
    (lambda: Stack(layers=Block(a=TURN), depth=2, layer_drop=0.1), "Stack.layer_drop: .*change the width"),
    (lambda: Stack(layers=Block(a=TURN, b=Sublayer(op=Attention(num_heads=2))), depth=1, position=Alibi(num_heads=2)),
     "Stack.position: .*change the width"),
    (lambda: Stages(stages=(Stack(layers=PLAIN, depth=1), Stack(layers=Block(a=TURN), depth=1)), down=(Merge(),)),
     r"Stages.stages.1: .*change the width"),
    (lambda: PooledAttention(num_heads=1, queries=GridPool(kernel=(2, 3), stride=(1, 1))), "its sizes must be odd"),
    (lambda: PooledAttention(num_heads=1, queries=GridPool(kernel=(3, 3), stride=(1, 3))), "must be 1 or even"),
    (lambda: PooledAttention(num_heads=1, queries=FINE, position=GridVectors(size=(2, 2, 2))), "or all for videos"),
    (lambda: GridPool(kernel=(3,), stride=(1,)), "frames, rows, columns"),
    (lambda: GridPool(kernel=(3, 0), stride=(1, 1)), "at least 1"),
    (lambda: af.build(model(Sublayer(op=PooledAttention(num_heads=3)))), "width 8 is not a multiple of 3 heads"),
    (lambda: model(Sublayer(op=LocalRelation(num_heads=2))), "LocalRelation needs a grid"),
    (lambda: model(Sublayer(op=PooledAttention(num_heads=1, keys=GridPool(kernel=(1, 3, 3), stride=(1, 1, 1))))),
     "PooledAttention needs a video, which PatchEmbedding does not give; VideoEmbedding does"),
    (lambda: LocalRelation(num_heads=2, size=4), "size is 4; it must be odd"),
    (lambda: SeparableLearned(length=7, frames=2), "SeparableLearned.length 7 .*multiple of frames=2"),
    (lambda: PatchEmbedding(**SMALL, kernel=(7, 7), edge=(3, 3)), "PatchEmbedding.pad: .*set pad=False"),
    (lambda: af.build(model(TURN))(pixel_values=torch.randn(1, 3, 16, 12), attention_mask=torch.zeros(1, 13)),
     "give no attention_mask"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "line"), REFUSED, ids=[line for _, line in REFUSED])
def test_what_does_not_fit_is_refused_in_one_line(make: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line) as error:
        make()
    assert "\n" not in str(error.value)


# -- videos ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_video_of_separable_positions() -> None:
    video = VideoEmbedding(
        frames=5, image_size=(8, 6), patch_size=(4, 3), frame_step=2, frame_kernel=3, frame_edge=1, pad=False,
        prefix=(PrefixTokens(),), position=SeparableLearned(length=3 * 2 * 2, frames=3, offset=1), channels=2,
    )  # fmt: skip
    assert video.grid == Volume(3, 2, 2) and video.vectors(0) == 13
    assert video.row(0, 8) == {"pixel_values": (2, 5, 8, 6)}
    module, pixels = made(video), torch.randn(2, 2, 5, 8, 6)
    x, ctx = module({"pixel_values": pixels})
    assert ctx.extra(Volume) == (3, 2, 2)
    assert torch.allclose(x[:, 0], module.prefix[0].weight[0, 0] + module.position.before[0])
    patch = F.conv3d(pixels, module.patch.weight, module.patch.bias, (2, 4, 3), (1, 0, 0))
    for frame in range(3):
        for place in range(4):
            added = module.position.frames[frame] + module.position.places[place]
            torch.testing.assert_close(x[:, 1 + frame * 4 + place], patch.flatten(3)[:, :, frame, place] + added)
    with pytest.raises(ValueError, match=r"\(batch, 2 channels, frames, height, width\), got \(2, 2, 8, 6\)"):
        module({"pixel_values": pixels[:, :, 0]})
    with pytest.raises(ValueError, match=r"a video of \(7, 8, 6\) pixels makes \(4, 2, 2\) patches, but positions"):
        module({"pixel_values": torch.randn(2, 2, 7, 8, 6)})


# -- local relation layers, windows, rotary positions ------------------------------------------------------------------

LIKE = {"square": lambda q, k: -((q - k) ** 2), "distance": lambda q, k: -abs(q - k), "product": lambda q, k: q * k}


@torch.no_grad()
@pytest.mark.parametrize("likeness", list(LIKE))
def test_neighbours_place_by_place(likeness: Any) -> None:
    """Softmax over the neighbours inside the image, of the similarity plus an MLP of the offset, for each group."""
    ctx, x = context(), stream(context())
    op = made(LocalRelation(num_heads=2, size=3, likeness=likeness, prior=5))
    q, k, found = op.q(x), op.k(x), []
    for row in range(4):
        for column in range(3):
            near = [(i, j) for i in range(4) for j in range(3) if abs(i - row) <= 1 and abs(j - column) <= 1]
            offsets = torch.tensor([[i - row, j - column] for i, j in near], dtype=torch.float32)
            prior = op.down(F.relu(op.up(offsets)))  # (neighbours, H)
            at = torch.tensor([i * 3 + j for i, j in near])
            weights = (LIKE[likeness](q[:, row * 3 + column, None], k[:, at]) + prior).softmax(1)  # (B, neighbours, H)
            found.append((weights[..., None] * x[:, at].view(2, -1, 2, 4)).sum(1).flatten(1))
    torch.testing.assert_close(op(x, ctx), op.o(torch.stack(found, 1)), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_neighbourhood_as_large_as_the_image_is_attention_to_all_of_it() -> None:
    ctx, x = context(), stream(context())
    op = made(LocalRelation(num_heads=2, size=7, likeness="product", prior=None))
    weights = (op.q(x).mT[..., None] * op.k(x).mT[:, :, None]).softmax(-1)  # (B, H, N, N)
    expected = op.o((weights @ x.view(2, 12, 2, 4).transpose(1, 2)).transpose(1, 2).flatten(2))
    torch.testing.assert_close(op(x, ctx), expected, rtol=1e-5, atol=1e-5)
    one = made(LocalRelation(num_heads=2, size=1))
    torch.testing.assert_close(one(x, ctx), one.o(x))


@pytest.mark.parametrize("grid", (Grid(3, 3), Grid(2, 3), Grid(2, 2)))  # the size of the table, and smaller
def test_grid_bias_depends_on_distances_in_rows_and_columns(grid: Grid) -> None:
    module = GridBias(num_heads=2, size=3).build(Site(width=4))
    torch.nn.init.normal_(module.weight)
    index = torch.arange(grid.rows * grid.columns)
    ctx = Context(index=index, positions=index[None], extras=(grid,))
    _, bias = module.bias(torch.zeros(1, 2, len(index), 2), index, 1.0, ctx)
    assert bias is not None and bias.shape == (1, 2, len(index), len(index)) and bias.is_contiguous()
    for q in index.tolist():
        for k in index.tolist():
            down, right = q // grid.columns - k // grid.columns, q % grid.columns - k % grid.columns
            assert torch.equal(bias[0, :, q, k], module.weight[(down + 2) * 5 + right + 2])


def test_shifted_windows_see_the_same_on_any_batch_and_grid() -> None:
    """The cached regions of one grid are not used for a different grid or batch size."""
    mixer = Attention(num_heads=1)
    module = Windows(mixer=mixer, size=2, shift=1).build(Site(width=4)).eval()

    def run(x: Tensor, grid: Grid) -> Tensor:
        index = torch.arange(grid.rows * grid.columns)
        return module(x, Context(index=index, positions=index[None], extras=(grid,)))

    for grid in (Grid(4, 4), Grid(4, 6), Grid(4, 4)):
        x = torch.randn(3, grid.rows * grid.columns, 4)
        whole = run(x, grid)
        close(whole[1:2], run(x[1:2], grid))
        moved = x.clone()
        moved[:, 0] += 1.0  # the shift moves the corner to the opposite edge, where it is the only token of its region
        assert torch.equal(run(moved, grid)[:, 1:], whole[:, 1:]), "a token sees a token from the opposite edge"


@pytest.mark.parametrize("before", [0, 2])
def test_axial_rotary_positions(before: int) -> None:
    """The first half of a head rotates by the row, the second by the column, as complex numbers [Su et al. 2021]."""
    ctx, module = context(before=before), AxialRope(base=50.0).build(Site(width=8))
    q, k = torch.randn(2, 2, 3, before + 12, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
    found = module.rotate(q, k, ctx)
    frequency = 50.0 ** -torch.tensor([0.0, 0.5])
    for x, turned in zip((q, k), found, strict=True):
        expected = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()).clone()  # (B, H, T, 4)
        for place in range(12):
            row, column = divmod(place, GRID.columns)
            angle = torch.cat((row * frequency, column * frequency))
            expected[:, :, before + place] *= torch.polar(torch.ones(4), angle)
        close(turned, torch.view_as_real(expected).flatten(-2))
    q, k = (x[:, :, :1].expand_as(x) for x in (q, k))  # the same vector everywhere: scores depend only on distances
    q, k = module.rotate(q, k, ctx)
    scores = (q @ k.mT)[..., before:, before:].unflatten(-1, GRID).unflatten(2, GRID)
    close(scores[:, :, 1:, 1:, 1:, 1:], scores[:, :, :-1, :-1, :-1, :-1], 1e-5)
    with pytest.raises(ValueError, match="multiple of 4, got 6"):
        AxialRope().build(Site(width=6))


def test_a_vit_with_axial_rotary_positions() -> None:
    """They replace learned positions and work for images of any size; texts are refused."""
    embedding = PatchEmbedding(image_size=(8, 8), patch_size=(2, 2), channels=1, prefix=(PrefixTokens(),), pad=True)
    attention = Attention(num_heads=2, position=AxialRope())
    layers = Block(attention=Sublayer(op=attention, pre_norm=LayerNorm()), mlp=Sublayer(op=MLP(width=8)))
    spec = EncoderModel(
        width=16, embedding=embedding, encoder=Stack(layers=layers, depth=2), init={"*": Normal(std=0.3)}
    )
    model = af.build(spec).eval()
    image = torch.zeros(1, 1, 8, 8)
    image[..., 2:4, 2:4] = torch.tensor([[0.3, 1.0], [-1.0, 0.5]])
    out = model(pixel_values=image).last_hidden_state
    flipped = model(pixel_values=image.mT).last_hidden_state
    assert out.shape == (1, 17, 16) and model(pixel_values=image[..., :6]).last_hidden_state.shape == (1, 13, 16)
    assert (out - flipped).abs().max() > 1e-3  # rows and columns rotate differently
    text = af.override(af.spec("gpt2"), {"decoder.layers.attention.op.position": None})
    with pytest.raises(ValueError, match="AxialRope needs an image"):
        af.override(text, {"decoder.layers.attention.op.position": AxialRope()})
