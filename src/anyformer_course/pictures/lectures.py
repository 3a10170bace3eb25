"""The pictures of the lectures: each is a small function that returns a matplotlib figure.

`anyformer look --list` lists them, `anyformer look --picture NAME` draws one. Some pictures need a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyformer.look.picture import Picture
from anyformer_course.pictures import published_figures
from anyformer_course.pictures.alignment import alignment
from anyformer_course.pictures.taxonomy import taxonomy

if TYPE_CHECKING:
    from anyformer.look.views import Scene


def positions(length: int = 48, width: int = 32) -> Any:
    """Draw position encodings: vectors that are added to tokens, and biases of scores by distance."""
    import torch

    from anyformer.look.figures import heat_maps
    from anyformer.parts.position.absolute import Binary, Sinusoidal
    from anyformer.parts.position.bias import Alibi, BucketedBias
    from anyformer.parts.position.rotary import Rope
    from anyformer.specs.part import Site

    index, site = torch.arange(length), Site(width=width, address="position")
    sines = Sinusoidal(length=length).build(site)(index[None])[0]
    digits = Binary().build(site)(index[None])[0]
    alibi = Alibi(num_heads=8).build(site)(index, index)[0, 2]
    buckets = BucketedBias(num_heads=1, num_buckets=16, max_distance=32).build(site)
    with torch.no_grad():
        for parameter in buckets.parameters():
            parameter.copy_(torch.linspace(0, 1, parameter.numel()).view_as(parameter))
        distance = buckets(index, index)[0, 0]
    rotary = rope_scores(Rope(), length, width)
    maps = [sines, digits, alibi, distance, rotary, sines @ sines.T]
    titles = [
        "sines (position x channel)",
        "binary (position x channel)",
        "ALiBi: bias by distance",
        "T5: bucket of distance",
        "rotary: score of equal vectors",
        "sines: similarity of positions",
    ]
    return heat_maps([each.detach().float() for each in maps], titles, "position encodings")


def rope_scores(rope: Any, length: int, width: int) -> Any:
    """Return the products (T, T) of one vector with itself, rotated to every two positions."""
    import torch

    from anyformer.parts.position.bias import rotate_and_tap
    from anyformer.runtime.context import Context
    from anyformer.specs.part import Site

    index = torch.arange(length)
    ctx = Context(index=index, positions=index[None])
    same = torch.ones(1, 1, length, width)
    q, k = rotate_and_tap(rope.build(Site(width=width, address="position")), same, same, ctx, "position")
    return q[0, 0] @ k[0, 0].T


def masks(length: int = 32) -> Any:
    """Draw which keys each query attends to: every kind of mask, and combinations of masks."""
    import torch

    from anyformer.look.figures import heat_maps
    from anyformer.parts.mask import (
        Axial,
        Causal,
        Dilated,
        Fixed,
        Full,
        Global,
        RandomBlocks,
        SameBlock,
        Strided,
        Window,
    )
    from anyformer.runtime.visibility import Rows

    both = Window(size=4, ahead=True)
    kinds = {
        "full": Full(),
        "causal": Causal(),
        "window": both,
        "window & causal": Window(size=8) & Causal(),
        "dilated window": Window(size=12, ahead=True) & Dilated(step=3),
        "global | window": Global(first=2) | both,
        "blocks": SameBlock(size=8),
        "strided": Causal() & (Window(size=6) | Strided(stride=6)),
        "fixed": Causal() & (SameBlock(size=8) | Fixed(stride=8)),
        "axial": Axial(columns=8),
        "random blocks": RandomBlocks(size=4, per_row=2, num_blocks=length // 4),
        "BigBird": RandomBlocks(size=4, per_row=1, num_blocks=length // 4) | Global(first=4) | both,
    }
    q, k = torch.arange(length)[:, None], torch.arange(length)[None, :]
    allowed = [
        mask.allows(torch.zeros(1, 1, dtype=torch.long), q, k, Rows()).expand(length, length) for mask in kinds.values()
    ]
    return heat_maps([each.float() for each in allowed], [*kinds], "masks: rows attend to columns", limits=(0, 1))


def experts(tokens: int = 40, number: int = 8, capacity: int = 6, seed: int = 0) -> Any:
    """Draw where a switch router sends tokens, and which tokens it drops [Fedus et al. 2021]."""
    import torch

    from anyformer.look.figures import heat_maps
    from anyformer.parts.feedforward.routers import Switch
    from anyformer.runtime.context import Context
    from anyformer.specs.part import Site

    router = Switch(capacity=capacity).make(Site(width=8, address="router"), number)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in router.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        index = torch.arange(tokens)
        x = torch.randn(1, tokens, 8, generator=generator)
        chosen = router(x, Context(index=index, positions=index[None]))
    probabilities = chosen.logits.view(tokens, number).softmax(-1).T  # (E, T)
    routed = torch.zeros(number + 1, tokens).scatter_(0, chosen.experts.view(1, tokens), 1.0)
    dropped = int(routed[-1].sum())
    titles = ["probabilities of the router", f"experts of the tokens; last row: {dropped} dropped"]
    return heat_maps([probabilities, routed], titles, f"{number} experts with room for {capacity} tokens each")


def walk(scene: Scene) -> Any:
    """Draw the path of a prompt: positions, tokens and their ids, vectors, attention, the stream, the next words."""
    from anyformer.look.figures import new, plain
    from anyformer.look.maps import attention
    from anyformer.look.residual_stream import logit_lens, stream_norms
    from anyformer.look.views import Inside

    inside = Inside(scene)
    if not (predictions := inside.predictions()):
        raise ValueError("--picture walk shows the next words, but this model predicts no words")
    tokens, lens = [plain(token) for token in inside.labels(scene.target)], logit_lens(inside.run)
    figure, axes = new(2, 2, 11, 8)
    index = range(len(tokens))
    axes[0, 0].imshow(lens.states[0][0, :, :64].T.float().numpy(), aspect="auto", cmap="RdBu")
    axes[0, 0].set_title("embedding: one vector per token (the first 64 values); position, token, token id", fontsize=9)
    maps = attention(inside.run).maps
    middle = maps[len(maps) // 2]
    axes[0, 1].imshow(middle.weights[0].mean(0).float().numpy(), aspect="auto", cmap="viridis")
    axes[0, 1].set_title(f"attention of {middle.address}, mean of heads", fontsize=9)
    axes[0, 1].set_yticks(index, tokens, fontsize=7)
    axes[1, 0].imshow(stream_norms(inside.run)[:, 0].numpy(), aspect="auto", cmap="viridis")
    axes[1, 0].set_title("residual stream: norm of the vectors, layer by layer", fontsize=9)
    ids = inside.token_ids(scene.target, scene.inputs)
    assert ids is not None, "the model reads text"
    labels = [f"{i}: {token} {number}" for i, (token, number) in enumerate(zip(tokens, ids, strict=True))]
    axes[0, 0].set_xticks(index, labels, fontsize=7, rotation=60)
    for axis in (axes[0, 1], axes[1, 0]):
        axis.set_xticks(index, tokens, fontsize=7, rotation=60)
    best = predictions[-1][::-1]
    axes[1, 1].barh([plain(word) for word, _, _ in best], [share for _, share, _ in best])
    axes[1, 1].set_title(f"predictions after “{tokens[-1]}”", fontsize=9)
    return figure


def vit(scene: Scene) -> Any:
    """Draw the inside of a ViT: attention over the image, filters, similarity of positions, attention distance."""
    from anyformer.look.figures import new
    from anyformer.look.views import Inside
    from anyformer.look.vision import attention_distance, attention_map, filters, position_likeness, sheet

    figure, ((picture, attention, tiled), (likeness, distance, unused)) = new(3, 2, 12, 8)
    run, pixels = Inside(scene).run, scene.inputs["pixel_values"][0]
    tiles = filters(scene.model)
    low, high = tiles.amin((1, 2, 3), keepdim=True), tiles.amax((1, 2, 3), keepdim=True)
    tiles = in_colour((tiles - low) / (high - low).clamp(min=1e-9))
    tiled.imshow(sheet(tiles, columns=7, between=1.0).numpy(), interpolation="nearest")
    tiled.set_title(f"filters of patches: {len(tiles)} principal components", fontsize=9)
    address, share = attention_map(run)
    for axis in (picture, attention):
        axis.imshow(shades_of(pixels))
    seen = {"cmap": "inferno", "alpha": 0.75, "interpolation": "nearest", "vmin": 0}
    shown = attention.imshow(share.numpy(), extent=(0, pixels.shape[2], pixels.shape[1], 0), **seen)
    figure.colorbar(shown, ax=attention, shrink=0.7).ax.tick_params(labelsize=7)
    picture.set_title("the image as the model reads it", fontsize=9)
    attention.set_title(f"attention of {address}, mean of heads", fontsize=9)
    alike = position_likeness(scene.model)
    if alike is None:
        likeness.text(0.5, 0.5, "this model adds no positions to patches", ha="center", va="center", fontsize=8)
    else:
        image = likeness.imshow(sheet(alike.flatten(0, 1), columns=alike.shape[1]).numpy(), interpolation="nearest")
        figure.colorbar(image, ax=likeness, shrink=0.7).ax.tick_params(labelsize=7)
    likeness.set_title("similarity of positions: one map per patch", fontsize=9)
    for axis in (picture, attention, tiled, likeness, unused):
        axis.set_axis_off()
    for depth, far in enumerate(attention_distance(run).values()):
        distance.scatter([depth] * len(far), far.numpy(), s=14)
    distance.set_title("attention distance of each head, in patches, by layer", fontsize=9)
    distance.set_ylim(bottom=0)
    distance.xaxis.get_major_locator().set_params(integer=True)
    distance.tick_params(labelsize=7)
    return figure


def shades_of(pixels: Any) -> Any:
    """Pixels (C, height, width) of any range as an image (height, width, 3) from 0 to 1."""
    low, high = pixels.amin(), pixels.amax()
    return in_colour(((pixels - low) / (high - low).clamp(min=1e-6)).permute(1, 2, 0).float()).cpu().numpy()


def in_colour(shades: Any) -> Any:
    """(..., C) -> (..., 3): unchanged if C is 3, otherwise the first channel as gray."""
    return shades if shades.shape[-1] == 3 else shades[..., :1].expand(*shades.shape[:-1], 3)


def windows(scene: Scene) -> Any:
    """Draw the windows of a model over an image: one column per grid, shifted windows below the plain ones."""
    from anyformer.look.figures import new
    from anyformer.look.vision import windows as windows_of

    pixels = scene.inputs["pixel_values"]
    groupings = windows_of(scene.model.spec, tuple(pixels.shape[2:]))
    grids: dict[Any, list[Any]] = {}
    for each in groupings:
        grids.setdefault((each.span, each.window.shape), []).append(each)
    high = max(map(len, grids.values()))
    figure, axes = new(len(grids), high, 3.6 * len(grids), 4.1 * high + 0.4)
    for column, same_grid in zip(axes.T, grids.values(), strict=True):
        for axis in column[len(same_grid) :]:
            axis.set_axis_off()
        for axis, each in zip(column, same_grid, strict=False):
            over_image(axis, pixels[0], each)
    figure.suptitle(
        "patches attend to patches in the same window; areas with the same number are one window joined by the shift:\n"
        "there, patches attend only to patches of the same color",
        fontsize=9,
    )
    return figure


def over_image(axis: Any, pixels: Any, grouping: Any) -> None:
    """Draw the windows of one layer over the image (C, height, width)."""
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection

    (high, wide), (rows, columns) = pixels.shape[1:], grouping.window.shape
    axis.imshow(shades_of(pixels), extent=(0, wide, high, 0))
    parts = grouping.part.where(grouping.joined, -1)
    kinds = [int(part) for part in parts.unique() if part >= 0]
    colour = {-1: (0.0, 0.0, 0.0, 0.0)} | {part: (*colormaps["tab10"](i)[:3], 0.55) for i, part in enumerate(kinds)}
    axis.imshow(
        [[colour[part] for part in line] for line in parts.tolist()],
        interpolation="nearest",
        extent=(0, columns * grouping.span.width, rows * grouping.span.height, 0),
    )
    lines = [[(left, top), (right, bottom)] for (top, left), (bottom, right) in grouping.seams()]
    for shade, thick in (("white", 1.6), ("black", 0.7)):  # visible on any image
        axis.add_collection(LineCollection(lines, colors=shade, linewidths=thick))
    for window, _, (row, column) in grouping.pieces():
        axis.text(
            column,
            row,
            str(window),
            ha="center",
            va="center",
            fontsize=7,
            clip_on=True,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.7},
        )
    axis.set_xlim(0, wide)
    axis.set_ylim(high, 0)
    axis.set_axis_off()
    kind = f"shifted by {grouping.shift}" if grouping.shift else "not shifted"
    axis.set_title(f"{grouping.about}\n{rows} x {columns} grid, windows of side {grouping.size}, {kind}", fontsize=8)


def spectrogram(scene: Scene) -> Any:
    """Draw the recording as a spectrogram, with the words below it at their times."""
    import textwrap

    from anyformer.look.figures import new, plain

    assert scene.sound is not None, "the model reads sound"
    sound = scene.sound()
    lines = sound.lines()
    figure, axes = new(1, 2 * len(lines), 12, 2.6 * len(lines) + 0.4, height_ratios=[3, 1] * len(lines))
    low, high = float(sound.power.min()), float(sound.power.max())
    for line, upper, lower in zip(lines, axes[::2, 0], axes[1::2, 0], strict=True):
        upper.imshow(
            line.power.numpy(),
            aspect="auto",
            origin="lower",
            cmap="magma",
            vmin=low,
            vmax=high,
            extent=(line.start, line.end, 0, sound.high),
        )
        upper.set_ylabel(sound.unit, fontsize=7)
        upper.tick_params(labelsize=7, labelbottom=False)
        lower.tick_params(labelsize=7, left=False, labelleft=False)
        lower.set_xlabel("seconds", fontsize=7)
        lower.set_ylim(3, -0.2)
        for axis in (upper, lower):
            axis.set_xlim(line.start, line.end)
        for i, word in enumerate(line.words):
            for edge in (word.start, word.end):
                upper.axvline(edge, color="white", linewidth=0.5, linestyle=":")
            lower.plot((word.start, word.end), (i % 3, i % 3), color=f"C{i % 3}", linewidth=3, solid_capstyle="butt")
            shown = max(word.start, line.start), min(word.end, line.end)
            letters = max(12, int((shown[1] - shown[0]) / (line.end - line.start) * 120))
            text = textwrap.shorten(plain(word.text), 3 * letters, placeholder=" ...")
            text = textwrap.fill(text, letters, break_long_words=False)
            lower.text(sum(shown) / 2, i % 3 + 0.15, text, ha="center", va="top", fontsize=7)
    figure.suptitle(sound.about, fontsize=9)
    return figure


PICTURES: dict[str, Picture] = {
    "positions": Picture("position encodings as heat maps: sines, binary, rotary, ALiBi, T5's buckets", positions),
    "masks": Picture("attention masks: full, causal, window, dilated, global, random, strided, ...", masks),
    "experts": Picture("where a switch router sends tokens, and which tokens it drops", experts),
    "sizes": Picture("published models: parameters by date, with our counts", published_figures.sizes),
    "compute": Picture("published models: training compute by date, with 6 N D", published_figures.compute),
    "context": Picture("published models: context length by date", published_figures.context),
    "glue": Picture("published models: GLUE and SuperGLUE by date and by size", published_figures.glue),
    "taxonomy": Picture("efficient Transformers by group, with the Part that computes each of them", taxonomy),
    "walk": Picture(
        "the path of a prompt through a model: tokens, ids, vectors, attention, stream, next words", walk, "text"
    ),
    "alignment": Picture(
        "cross-attention of an encoder-decoder: the source tokens that each generated token reads", alignment, "text"
    ),
    "vit": Picture(
        "inside a ViT: attention over the image, first filters, similarity of positions, attention distance by depth",
        vit,
        "image",
    ),
    "windows": Picture(
        "windows and shifted windows (Swin) over an image; INPUT is optional", windows, "image", bare=True
    ),
    "spectrogram": Picture("a recording as a spectrogram, with its words at their times", spectrogram, "sound"),
}
