"""Positions of tokens that are nodes of a graph, as in Graphormer [Ying et al. 2021]: the number of edges of a node,
the distance between two nodes, and the edges on the path between them.

A graph is given as `graph_edges` (B, T, T): the kind, from 1, of the edge from node i to node j; 0 means no edge.
B batch, T nodes, H heads.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.base import AbsolutePosition, InputPosition
from anyformer.parts.position.bias import AttentionPositionModule, HeadwisePosition
from anyformer.runtime.context import Context, InputExtra
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.part import Site


@dataclasses.dataclass(frozen=True)
class Graph(InputExtra, name="graph_edges"):
    """The graph of each row."""

    edges: Tensor  # (B, T, T) kind of the edge from i to j, 0 for none

    @staticmethod
    def shape(length: int) -> tuple[int, ...]:
        return length, length


def edges_of(ctx: Context) -> Tensor:
    """(B, T, T) kinds of edges between the tokens of this call; pads have no edges."""
    graph, T = ctx.extra(Graph), ctx.index.shape[-1]
    if graph is None:
        raise ValueError("positions in a graph need the input graph_edges: (batch, nodes, nodes), 0 for no edge")
    if graph.edges.shape[1:] != (T, T) or ctx.state is not None:
        raise ValueError(f"graph_edges is {tuple(graph.edges.shape)} for {T} nodes; a graph cannot grow while decoding")
    if ctx.tokens is None:
        return graph.edges
    return graph.edges * (ctx.tokens[:, :, None] & ctx.tokens[:, None])


def distances(edges: Tensor, reach: int) -> Tensor:
    """(B, T, T) number of edges on the shortest path from i to j; `reach` + 1 if it is longer than `reach`."""
    linked = (edges != 0).float()
    reached = torch.eye(edges.shape[1], device=edges.device).expand_as(linked)
    apart = torch.full_like(edges, reach + 1).masked_fill(reached > 0, 0)
    for step in range(1, reach + 1):
        reached = ((reached + reached @ linked) > 0).float()
        apart = apart.masked_fill((reached > 0) & (apart > reach), step)
    return apart


def path_sums(edges: Tensor, apart: Tensor, values: Tensor) -> Tensor:
    """(B, T, T, H) sums over the edges of a shortest path from i to j. `values` (N, R, H) has one value per index of
    an edge on its path and per edge kind. Of several paths, the one with the lowest nodes is used, from its end."""
    B, T = edges.shape[:2]
    sums = values.new_zeros(B, T, T, values.shape[-1])
    for step in range(1, values.shape[0] + 1):
        # (B, i, p, j): p is one step nearer to i, and has an edge to j
        before = ((apart == step - 1)[..., None] & (edges != 0)[:, None]).float().argmax(2)  # (B, i, j), the lowest p
        kind = edges.gather(1, before)  # of the edge from p to j
        more = sums.gather(2, before[..., None].expand_as(sums)) + values[step - 1][kind]
        sums = torch.where((apart == step)[..., None], more, sums)
    return sums


class DegreeCentrality(AbsolutePosition, sees="all", called=("centrality encoding", "Graphormer centrality")):
    """Adds learned vectors for the number of edges that lead to a node and from it [Ying et al. 2021]. The graph is the
    input `graph_edges`."""

    extra_inputs: ClassVar[tuple[type[InputExtra], ...]] = (Graph,)
    requires: ClassVar[tuple[str, ...]] = ("a row of tokens",)
    numbered: ClassVar[bool] = False
    causal_alternative: ClassVar[str] = "Learned(length=...)"

    most: Count = 16  # larger degrees share the last vector


class DegreeCentralityModule(InputPosition, of=DegreeCentrality):
    def __init__(self, part: DegreeCentrality, site: Site) -> None:
        super().__init__()
        self.into, self.out = (nn.Embedding(part.most + 1, site.width) for _ in range(2))

    def add(self, x: Tensor, ctx: Context) -> Tensor:
        linked = edges_of(ctx) != 0
        into, out = (linked.sum(side).clamp(max=self.into.num_embeddings - 1) for side in (1, 2))
        return x + (self.into(into) + self.out(out)).to(x.dtype)


class ShortestPathBias(
    HeadwisePosition, sees="all", called=("Graphormer", "spatial encoding", "graph distance bias", "graph transformer")
):
    """One learned scalar per head and length of the shortest path from query to key, and one without a path. With
    `edge_kinds`, also the mean, over the edges of that path, of a scalar per head, edge kind and index of the edge on
    the path [Ying et al. 2021]. The graph is the input `graph_edges`."""

    extra_inputs: ClassVar[tuple[type[InputExtra], ...]] = (Graph,)
    requires: ClassVar[tuple[str, ...]] = ("a row of tokens",)

    reach: Count = 8  # longer paths count as no path
    edge_kinds: Natural = 0  # number of edge kinds with scalars; 0: kinds are ignored

    @property
    def causal_alternative(self) -> str:
        return f"Alibi(num_heads={self.num_heads})"


class ShortestPathBiasModule(AttentionPositionModule, of=ShortestPathBias):
    def __init__(self, part: ShortestPathBias, site: Site) -> None:
        super().__init__()
        self.part, H = part, part.num_heads
        self.table = nn.Embedding(part.reach + 2, H)
        self.edges = nn.Parameter(torch.zeros(part.reach, part.edge_kinds + 1, H)) if part.edge_kinds else None

    def bias(self, q: Tensor, places: Tensor, scale: float, ctx: Context) -> tuple[Tensor, Tensor | None]:
        reach = self.part.reach
        edges = ctx.once("graph edges", lambda: edges_of(ctx))
        apart = ctx.once(f"graph distances {reach}", lambda: distances(edges, reach))
        bias = self.table(apart)
        if self.edges is not None:
            sums = path_sums(edges.clamp(max=self.part.edge_kinds), apart, self.edges)
            bias = bias + sums / apart.clamp(min=1)[..., None]
        return q, bias.permute(0, 3, 1, 2).to(q.dtype).contiguous()
