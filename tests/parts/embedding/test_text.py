"""Text embeddings: the order of their steps, their widths, and the positions of tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from anyformer.parts.embedding.segment_ids import TokenSegments
from anyformer.parts.embedding.text import STEPS, TextEmbedding, Tokens
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.parts.position.numbering import ByPlace, Numbering, RealTokens, WithoutToken
from anyformer.specs.part import Site
from small import close

BIG_BIRD = ["segments", "position", "dropout", "norm", "project"]
OPT = ["project", "segments", "position", "norm", "dropout"]


def built(**more: Any) -> Any:
    torch.manual_seed(0)
    part = TextEmbedding(tokens=Tokens(vocab_size=9, width=6), position=Learned(length=8, offset=1), **more)
    module = part.build(Site(width=4))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("order", [STEPS, BIG_BIRD, OPT, ["norm", "project", "dropout", "position", "segments"]])
def test_steps_happen_in_their_order(order: list[str]) -> None:
    module = built(segments=2, norm=LayerNorm(), dropout=0.5, order=tuple(order), project_bias=order != OPT)
    ids, kinds = torch.tensor([[3, 1, 4], [1, 5, 8]]), torch.tensor([[0, 1, 1], [0, 0, 1]])
    weights = dict(module.named_parameters())
    torch.manual_seed(7)
    found, _ = module.train()({"input_ids": ids, "token_type_ids": kinds})
    x = weights["tokens.weight"][ids]
    torch.manual_seed(7)
    for step in order:
        if step == "segments":
            x = x + weights["segments.weight"][kinds]
        elif step == "position":
            x = x + weights["position.weight"][1:4]
        elif step == "norm":
            x = F.layer_norm(x, x.shape[-1:], weights["norm.weight"], weights["norm.bias"])
        elif step == "dropout":
            x = F.dropout(x, 0.5)
        else:
            x = F.linear(x, weights["project.weight"], weights.get("project.bias"))
    close(found, x, 1e-6)
    assert ("project.bias" in weights) == (order != OPT)


@pytest.mark.parametrize(("numbering", "right"), [
    (ByPlace(), [[0, 0, 1, 2, 3], [0, 1, 2, 3, 4]]),  # the pad on the left of the first row does not count
    (RealTokens(), [[-1, 0, 1, -1, 2], [0, 1, 2, 3, 4]]),
    (WithoutToken(token=7), [[-1, 0, -1, 1, 2], [0, 1, 2, -1, 3]]),
])  # fmt: skip
def test_positions(numbering: Numbering, right: list[list[int]]) -> None:
    ids = torch.tensor([[0, 1, 7, 2, 3], [1, 2, 3, 7, 4]])
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 1, 1, 1]])
    _, ctx = built(numbering=numbering)({"input_ids": ids, "attention_mask": mask})
    assert ctx.positions.tolist() == right
    _, ctx = built(numbering=numbering)({"input_ids": ids, "document_ids": torch.tensor([[4, 4, 4, 5, 5]] * 2)})
    alone = [built(numbering=numbering)({"input_ids": part})[1].positions for part in (ids[:, :3], ids[:, 3:])]
    assert torch.equal(ctx.positions, torch.cat([each.expand(2, -1) for each in alone], 1))
    given = {"input_ids": ids, "attention_mask": mask.float(), "position_ids": torch.arange(5)[None] + 2}
    _, ctx = built(numbering=numbering.replace(first=2))(given)
    assert ctx.positions.tolist() == [[0, 1, 2, 3, 4]]


def test_mistakes_are_one_line() -> None:
    tokens = Tokens(vocab_size=9, width=6)
    with pytest.raises(ValueError, match="order is norm, norm; it must contain segments, position, norm, dro"):
        TextEmbedding(tokens=tokens, order=("norm", "norm"))
    with pytest.raises(ValueError, match="order: with TokenSegments, 'segments' must come before 'project'"):
        TextEmbedding(tokens=tokens, segments=TokenSegments(), order=tuple(OPT))  # type: ignore[arg-type]
