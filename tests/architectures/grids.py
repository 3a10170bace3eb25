"""How to draw the fields of Parts on grids. A size has two sides for images and three for videos."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st

ON_GRIDS = ("PooledAttention", "GridVectors")  # Parts for images and videos; sizes have two or three sides
NORMS = ({"kind": "LayerNorm"}, {"kind": "RMSNorm"}, None)


def sides(*values: int) -> Callable[[Any, Any], list[int]]:
    def drawn(draw: Any, slot: Any) -> list[int]:
        return [draw(st.sampled_from(values)) for _ in range(3 if "a video" in slot.gives else 2)]

    return drawn


def pool(coarser: bool) -> Callable[[Any, Any], dict[str, Any] | None]:
    """A GridPool or None. Queries are pooled with a stride only if the stream may change its grid."""

    def drawn(draw: Any, slot: Any) -> dict[str, Any] | None:
        if not draw(st.integers(0, 2)):
            return None
        steps = (1, 2) if coarser or slot.reshapes or slot.careless else (1,)
        by, norm = draw(st.sampled_from(("convolution", "max", "mean"))), draw(st.sampled_from(NORMS))
        made = {"kernel": sides(1, 3)(draw, slot), "stride": sides(*steps)(draw, slot), "by": by, "norm": norm}
        return {"kind": "GridPool", **made}

    return drawn


def position(draw: Any, slot: Any) -> dict[str, Any] | None:
    return {"kind": "GridVectors", "size": sides(1, 2, 4)(draw, slot)} if draw(st.booleans()) else None


def step(draw: Any, slot: Any) -> int:
    """The stride of the queries: above 1 only if the stream may change its grid."""
    return draw(st.sampled_from((1, 2))) if slot.reshapes or slot.careless else 1


def out(draw: Any, slot: Any) -> int | None:
    """The output width: None, or a different width if the stream may change it."""
    return 2 * slot.width if (slot.reshapes or slot.careless) and draw(st.integers(0, 3)) == 3 else None


def skip(draw: Any) -> dict[str, Any]:
    return {"kind": "Skip", "by": draw(st.sampled_from(("max", "mean")))}


def patches(draw: Any, made: dict[str, Any]) -> dict[str, Any]:
    """Make the patches of an embedding overlap, sometimes. Embeddings without patches are not changed."""
    if "patch_size" in made and draw(st.booleans()):
        made = {**made, "pad": False, "edge": [1, 1], "kernel": [side + 1 for side in made["patch_size"]]}
    video = made["kind"] == "VideoEmbedding"
    if video and draw(st.booleans()):
        made = {**made, "pad": False, "frame_kernel": 3, "frame_edge": 1}
    return made


FIELDS: dict[str, Any] = {
    "out": out, "LocalRelation.size": st.sampled_from((1, 3, 5)), "LocalRelation.prior": st.sampled_from((4, None)),
    "GridBlocks.size": st.sampled_from(([2, 2], [1, 3])), "step": step,
    "Dilated.step": st.integers(1, 4), "HaloAttention.block": st.sampled_from((2, 1, 4)),
    "HaloAttention.halo": st.sampled_from((1, 0, 3)), "HaloAttention.bias": st.sampled_from(("qkv", "", "q")),
    "HaloAttention.relative": lambda draw, slot: slot.width // slot.heads % 2 == 0 and draw(st.booleans()),
    # its weights start at zero, so a norm after it would make the first training step too large
    "NonLocal.norm": lambda draw, slot: draw(st.sampled_from(NORMS)) if slot.careless else None,
    "NonLocal.pool": st.integers(1, 3), "CrissCross.reduction": st.sampled_from((1, 2, 8)),
    "OpLayer.pool": lambda draw, slot: draw(st.integers(1, 2)) if slot.careless else 1,
     "PooledAttention.queries": pool(False), "PooledAttention.keys": pool(True),
    "PooledAttention.position": position, "PooledAttention.bias": st.sampled_from(("qkvo", "", "qv")),
    "GridVectors.size": sides(1, 2, 4), "SeparableLearned.frames": st.sampled_from((1, 2, 4)),
    "SeparableLearned.padding": st.just(False), "PatchEmbedding.kernel": st.none(),
    "PatchEmbedding.edge": st.just([0, 0]), "VideoEmbedding.frames": st.sampled_from((2, 3)),
    "VideoEmbedding.frame_step": st.sampled_from((1, 2)), "VideoEmbedding.frame_kernel": st.none(),
    "VideoEmbedding.frame_edge": st.just(0), "VideoEmbedding.position": st.none(),
    "Sublayer.skip": lambda draw, slot: skip(draw) if slot.careless and draw(st.booleans()) else None,
}  # fmt: skip
