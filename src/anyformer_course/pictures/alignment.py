"""Cross-attention of an encoder-decoder: which source tokens the decoder reads for each token it generates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyformer.look.views import Scene


def alignment(scene: Scene) -> Any:
    """Draw one map per decoder layer, the mean of its heads, with source tokens as columns."""
    from anyformer.look.figures import new, plain
    from anyformer.look.maps import attention
    from anyformer.look.views import Inside

    inside = Inside(scene)
    maps = [each for each in attention(inside.run).maps if each.kind == "cross"]
    if not maps:
        raise ValueError("--picture alignment needs a model with an encoder and a decoder")
    source = [plain(token) for token in inside.labels("input_ids")]
    generated = [plain(token) for token in inside.labels(scene.target)][1:] + ["end"]  # row t predicts token t + 1
    width = max(4, 0.22 * len(source)) * len(maps) + 0.5
    figure, axes = new(len(maps), 1, width, max(2.5, 0.24 * len(generated) + 1.2))
    for axis, each in zip(axes[0], maps):
        axis.imshow(each.weights[0].mean(0).float().cpu().numpy(), aspect="auto", cmap="Blues", vmin=0, vmax=1)
        axis.set_title(f"{each.address.removesuffix('.op')}, mean of {each.weights.shape[1]} heads", fontsize=9)
        axis.set_xticks(range(len(source)), source, fontsize=8, rotation=90 if max(map(len, source)) > 2 else 0)
        axis.set_yticks(range(len(generated)), generated, fontsize=8)
        axis.set_xlabel("source", fontsize=8)
        axis.set_ylabel("generated", fontsize=8)
    return figure
