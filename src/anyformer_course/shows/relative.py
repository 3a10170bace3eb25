"""Relative positions: what T5's buckets, ALiBi and Shaw's vectors add to the scores of two words, by their distance.

T5 adds one learned number per bucket of distances, ALiBi a fixed number that falls with the distance, Shaw's vectors
a product of the query with one vector per distance, which is clipped. With `parents`, distances are counted in the
dependency tree [Wang et al. 2019].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.look.figures import heat_maps
from anyformer.specs.field_types import Natural
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.words import label_rows, vectors


@torch.no_grad()
def example(
    text: str = "The dog chased another dog in the park", *, head: int = 0, heads: int = 8, clip: Natural = 2,
    parents: Sequence[int] | None = None, seed: int = 0,
) -> Shown:  # fmt: skip
    """Compute the three biases of a `head`. `clip`: largest distance of Shaw's vectors. `parents`: the index of each
    word's head in the dependency tree, -1 for the root."""
    from anyformer.parts.position.bias import Alibi, BucketedBias
    from anyformer.parts.position.dependency_tree import depths
    from anyformer.specs.part import Site

    words, x = vectors(text, 4, seed)
    if not 0 <= head < heads:
        raise ValueError(f"head is {head}; it must be from 0 to {heads - 1}")
    index, draws = torch.arange(len(words)), torch.Generator().manual_seed(seed)
    site = Site(width=4, address="position")
    distance = index[None, :] - index[:, None] if parents is None else tree(parents, len(words))  # (T, S)
    t5 = BucketedBias(num_heads=heads, num_buckets=8, max_distance=16).build(site)
    torch.nn.init.normal_(t5.table.weight, generator=draws)
    alibi = Alibi(num_heads=heads).build(site)
    table = torch.randn(2 * clip + 1, 4, generator=draws)  # Shaw: one vector per distance from -clip to clip
    clipped = distance.clamp(-clip, clip)
    biases = {
        "T5": t5.table(t5.bucket(distance))[..., head],
        "ALiBi": alibi.fall(distance[None])[0, head],
        "Shaw": torch.einsum("tk,tsk->ts", x, table[clipped + clip]) / 2,  # q a / sqrt(K), with x as queries
    }
    in_tree = []
    if parents is not None:
        above = ["(root)" if parent < 0 else words[parent] for parent in parents]
        levels = depths(head_indices(parents))[0].tolist()
        in_tree = [Table("tree", ("word", "below", "depth"), [*map(list, zip(words, above, levels))])]
    far = sorted({int(value) for value in distance.flatten()})
    by_distance = [
        [d, int(t5.bucket(torch.tensor(d))), float(t5.table.weight[t5.bucket(torch.tensor(d)), head]),
         float(alibi.fall(torch.tensor([[[d]]]))[0, head]), max(-clip, min(d, clip))]
        for d in far
    ]  # fmt: skip

    def draw() -> Any:
        maps, titles = [distance.float(), *biases.values()], ["distance", *biases]
        return heat_maps(maps, titles, f"what is added to the scores, head {head}", words)

    return Shown(
        f"{amount(len(far), 'distance')}: {amount(len({row[1] for row in by_distance}), 'bucket')} of T5 and "
        f"{amount(len({row[4] for row in by_distance}), 'vector')} of Shaw; ALiBi's slope is "
        f"{float(alibi.slopes()[head]):.4f}.",
        [
            *in_tree,
            Table("by distance", ("distance", "T5 bucket", "T5 bias", "ALiBi bias", "Shaw's vector"), by_distance),
            *(
                Table(f"{name}: added to the scores", ("word", *words), label_rows(words, bias))
                for name, bias in biases.items()
            ),
        ],
        draw,
    )


def tree(parents: Sequence[int], number: int) -> Tensor:
    """(T, T) distances in the tree: difference of depths on one path to the root, otherwise their sum with a sign."""
    from anyformer.parts.position.dependency_tree import distances

    if len(parents) != number:
        raise ValueError(f"parents has {len(parents)} entries for {number} words; give the index of each word's head")
    return distances(head_indices(parents))[0]


def head_indices(parents: Sequence[int]) -> Tensor:
    """(1, T) the index of each word's head; the root points at itself."""
    return torch.tensor([[i if parent < 0 else parent for i, parent in enumerate(parents)]])
