"""The pictures of the lectures, each a small function that gives a matplotlib figure.

`anyformer look --list` names them, `anyformer look --picture NAME` makes one; `walk` and `vit` are of a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from anyformer.look.inside import Scene


class Picture(NamedTuple):
    """What it shows, and what makes it: from nothing, or from a model and what it reads."""

    about: str
    draw: Callable[..., Any]
    needs: str = ""  # "text" or "image", where it needs a model that reads that


def positions(length: int = 48, width: int = 32) -> Any:
    """Ways to tell where a token stands: added vectors, and what distance does to scores."""
    import torch

    from anyformer.look.figures import heat_maps
    from anyformer.part import Site
    from anyformer.parts.bias import Alibi, BucketedBias
    from anyformer.parts.position import Binary, Rope, Sinusoidal

    places, site = torch.arange(length), Site(width=width, address="position")
    sines = Sinusoidal(length=length).build(site)(places[None])[0]
    digits = Binary().build(site)(places[None])[0]
    falling = Alibi(num_heads=8).build(site)(places, places)[0, 2]
    buckets = BucketedBias(num_heads=1, num_buckets=16, max_distance=32).build(site)
    with torch.no_grad():
        for parameter in buckets.parameters():
            parameter.copy_(torch.linspace(0, 1, parameter.numel()).view_as(parameter))
        distance = buckets(places, places)[0, 0]
    turned = rope_scores(Rope(), length, width)
    maps = [sines, digits, falling, distance, turned, sines @ sines.T]
    titles = [
        "sines (place x channel)", "binary (place x channel)", "ALiBi: bias by distance", "T5: bucket of distance",
        "rotary: score of equal vectors", "sines: likeness of places",
    ]  # fmt: skip
    return heat_maps([each.detach().float() for each in maps], titles, "position encodings")


def rope_scores(rope: Any, length: int, width: int) -> Any:
    """(T, T): the products of one vector with itself, turned to two places."""
    import torch

    from anyformer.context import Context
    from anyformer.part import Site
    from anyformer.parts.bias import turned

    index = torch.arange(length)
    ctx = Context(index=index, positions=index[None])
    same = torch.ones(1, 1, length, width)
    q, k = turned(rope.build(Site(width=width, address="position")), same, same, ctx, "position")
    return q[0, 0] @ k[0, 0].T


def masks(length: int = 32) -> Any:
    """Who may look at whom: every kind of mask, and three that are put together."""
    import torch

    from anyformer.look.figures import heat_maps
    from anyformer.mask import (
        Axial,
        Causal,
        Dilated,
        Fixed,
        Full,
        Global,
        RandomBlocks,
        Rows,
        SameBlock,
        Strided,
        Window,
    )

    both = Window(size=4, ahead=True)
    kinds = {
        "full": Full(), "causal": Causal(), "window": both, "window & causal": Window(size=8) & Causal(),
        "dilated window": Window(size=12, ahead=True) & Dilated(step=3), "global | window": Global(first=2) | both,
        "blocks": SameBlock(size=8), "strided": Causal() & (Window(size=6) | Strided(stride=6)),
        "fixed": Causal() & (SameBlock(size=8) | Fixed(stride=8)), "axial": Axial(columns=8),
        "random blocks": RandomBlocks(size=4, per_row=2, num_blocks=length // 4),
        "BigBird": RandomBlocks(size=4, per_row=1, num_blocks=length // 4) | Global(first=4) | both,
    }  # fmt: skip
    q, k = torch.arange(length)[:, None], torch.arange(length)[None, :]
    seen = [mask.allows(torch.zeros(1, 1, dtype=torch.long), q, k, Rows()).expand(length, length) for mask in
            kinds.values()]  # fmt: skip
    return heat_maps([each.float() for each in seen], [*kinds], "masks: rows look at columns", limits=(0, 1))


def experts(tokens: int = 40, number: int = 8, capacity: int = 6, seed: int = 0) -> Any:
    """Where a switch sends tokens, and who finds no room [Fedus et al. 2021]."""
    import torch

    from anyformer.context import Context
    from anyformer.look.figures import heat_maps
    from anyformer.part import Site
    from anyformer.parts.moe import Switch

    router = Switch(capacity=capacity).make(Site(width=8, address="router"), number)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in router.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        index = torch.arange(tokens)
        x = torch.randn(1, tokens, 8, generator=generator)
        chosen = router(x, Context(index=index, positions=index[None]))
    wanted = chosen.logits.view(tokens, number).softmax(-1).T  # (E, T)
    went = torch.zeros(number + 1, tokens).scatter_(0, chosen.experts.view(1, tokens), 1.0)
    dropped = int(went[-1].sum())
    titles = ["what the router would like", f"where tokens went; the last row: {dropped} dropped"]
    return heat_maps([wanted, went], titles, f"{number} experts with room for {capacity} tokens each")


def walk(scene: Scene) -> Any:
    """A prompt's walk: vectors of its tokens, attention, the stream by depth, the words that come next."""
    from anyformer.look.depth import logit_lens, stream_norms
    from anyformer.look.figures import new, plain
    from anyformer.look.inside import Inside
    from anyformer.look.maps import attention

    inside = Inside(scene)
    tokens, lens = [plain(token) for token in inside.labels(scene.target)], logit_lens(inside.run)
    figure, axes = new(2, 2, 11, 8)
    places = range(len(tokens))
    axes[0, 0].imshow(lens.states[0][0, :, :64].T.float().numpy(), aspect="auto", cmap="RdBu")
    axes[0, 0].set_title("embedding: a vector a token (64 numbers of it)", fontsize=9)
    maps = attention(inside.run).maps
    middle = maps[len(maps) // 2]
    axes[0, 1].imshow(middle.weights[0].mean(0).float().numpy(), aspect="auto", cmap="viridis")
    axes[0, 1].set_title(f"attention of {middle.address}, mean of heads", fontsize=9)
    axes[0, 1].set_yticks(places, tokens, fontsize=7)
    axes[1, 0].imshow(stream_norms(inside.run)[:, 0].numpy(), aspect="auto", cmap="viridis")
    axes[1, 0].set_title("residual stream: length of the vectors, layer by layer", fontsize=9)
    for axis in (axes[0, 0], axes[0, 1], axes[1, 0]):
        axis.set_xticks(places, tokens, fontsize=7, rotation=60)
    best = inside.predictions()[-1][::-1]
    axes[1, 1].barh([plain(word) for word, _, _ in best], [share for _, share, _ in best])
    axes[1, 1].set_title(f"what comes after “{tokens[-1]}”", fontsize=9)
    return figure


def vit(scene: Scene) -> Any:
    """Inside a ViT: its first filters, which places are alike, and how far each head looks by depth."""
    import torch

    from anyformer.look.figures import new
    from anyformer.look.inside import Inside
    from anyformer.look.maps import attention

    inside, read, model = Inside(scene), scene.model.spec.embedding, scene.model
    rows, columns = scene.media["grid"]
    figure, axes = new(3, 1, 11, 3.8)
    filters = next(p for n, p in model.embedding.named_parameters() if p.dim() == 4).detach()[:16]
    low, high = filters.amin((1, 2, 3), keepdim=True), filters.amax((1, 2, 3), keepdim=True)
    tiles = ((filters - low) / (high - low)).permute(0, 2, 3, 1)[..., :3]
    side = int(len(tiles) ** 0.5)
    sheet = torch.cat([torch.cat(list(tiles[i * side : (i + 1) * side]), 1) for i in range(side)], 0)
    axes[0, 0].imshow(sheet.numpy().squeeze())
    axes[0, 0].set_title("first filters", fontsize=9)
    table = getattr(getattr(model.embedding, "position", None), "weight", None)
    if table is not None:
        alike = torch.nn.functional.normalize(table.detach()[-rows * columns :], dim=-1)
        middle = (rows // 2) * columns + columns // 2
        axes[0, 1].imshow((alike @ alike[middle]).view(rows, columns).numpy(), cmap="viridis")
    axes[0, 1].set_title("how alike positions are to the middle one", fontsize=9)
    for depth, each in enumerate(attention(inside.run).maps):
        far = looked_distance(each.weights[0], rows, columns, getattr(read, "prefix", 0))
        axes[0, 2].scatter([depth] * len(far), far.numpy(), s=14)
    axes[0, 2].set_title("patches between a head's gaze and its query, by layer", fontsize=9)
    return figure


def looked_distance(weights: Any, rows: int, columns: int, prefix: int) -> Any:
    """(H, T, T) -> (H,): the mean distance in patches, weighted by attention."""
    import torch

    if weights.shape[-1] != prefix + rows * columns:
        raise ValueError("this picture is of attention between all patches of an image; this model has windows")
    grid = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), -1).flatten(0, 1)
    apart = torch.cdist(grid.float(), grid.float())
    among = weights[:, prefix:, prefix:].float()
    return (among * apart).sum((1, 2)) / among.sum((1, 2)).clamp(min=1e-9)


PICTURES: dict[str, Picture] = {
    "positions": Picture("position encodings as heat maps: sines, binary, rotary, ALiBi, T5's buckets", positions),
    "masks": Picture("who may look at whom: full, causal, window, dilated, global, random, strided, ...", masks),
    "experts": Picture("where a switch sends tokens, and which of them it drops", experts),
    "walk": Picture("a prompt's walk through a model: vectors, attention, stream, next words", walk, "text"),
    "vit": Picture("inside a ViT: first filters, likeness of positions, attention distance by depth", vit, "image"),
}
