"""TwoStreams with other Parts than XLNet's, and Parts that it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.models import DecoderModel, EncoderModel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.permuted_text import OrderedText
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Normal
from anyformer.parts.mask import CAUSAL, FULL, SameReach
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.bias import Alibi, BucketedBias, DistanceBias, RelativeVectors
from anyformer.parts.position.relative import RelativeSinusoids
from anyformer.parts.position.rotary import Rope
from anyformer.parts.position.segments import SegmentedSinusoids
from anyformer.parts.recurrent.lstm import LSTM
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.stacks.two_streams import TwoStreams
from small import close

V, T = 40, 9
POSITIONS: dict[str, Any] = {
    "none": None, "Alibi": Alibi(num_heads=2), "BucketedBias": BucketedBias(num_heads=2),
    "DistanceBias": DistanceBias(num_heads=2, before=4), "RelativeVectors": RelativeVectors(before=3),
    "RelativeSinusoids": RelativeSinusoids(num_heads=2), "SegmentedSinusoids": SegmentedSinusoids(num_heads=2),
}  # fmt: skip


def spec(op: Any, **more: Any) -> EncoderModel:
    layer = Block(
        attention=Sublayer(pre_norm=LayerNorm(), op=op), feedforward=Sublayer(pre_norm=LayerNorm(), op=MLP(width=24))
    )
    return EncoderModel(
        width=16, embedding=OrderedText(tokens=Tokens(vocab_size=V)), head=LMHead(vocab_size=V, shift=False),
        encoder=TwoStreams(layers=layer, depth=3, **more), init={"*": Normal(std=0.3)},
    )  # fmt: skip


def attention(position: Any = None, mask: Any = FULL) -> Attention:
    return Attention(num_heads=2, position=position, mask=mask)


def text(seed: int = 0) -> torch.Tensor:
    return torch.randint(1, V, (2, T), generator=torch.Generator().manual_seed(seed))


def asked(*places: int) -> torch.Tensor:
    return torch.eye(T)[list(places)].expand(2, -1, -1)


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_any_position_scheme_that_adds_to_scores(name: str, kernel: str) -> None:
    """A target depends only on the tokens that the order allows, not on its own token or on other targets. If the order
    is left to right, a text read in two parts with memories gives the same result as the whole text."""
    model, ids = af.build(spec(attention(POSITIONS[name]))).eval(), text()
    model.kernel = kernel
    hidden = torch.zeros(2, T, T)
    hidden[:, :, [2, 5, 7]] = 1  # hidden from all tokens,
    hidden[:, 7, 2] = 0  # except that token 7 sees token 2
    with torch.no_grad():
        plain = model(input_ids=ids, perm_mask=hidden, target_mapping=asked(7, 5, 2)).logits
        alone = model(input_ids=ids, perm_mask=hidden, target_mapping=asked(5)).logits
        close(alone, plain[:, 1:2], 1e-6)
        for place, changed in ((2, [True, False, False]), (5, [False] * 3), (7, [False] * 3), (0, [True] * 3)):
            other = ids.clone()
            other[:, place] = other[:, place] % (V - 1) + 1
            found = model(input_ids=other, perm_mask=hidden, target_mapping=asked(7, 5, 2)).logits
            assert [not torch.allclose(found[:, i], plain[:, i], atol=1e-6) for i in range(3)] == changed, place
    back = af.build(spec(attention(POSITIONS[name], CAUSAL))).eval()
    back.kernel = kernel
    if name == "SegmentedSinusoids":  # treats the first token of a text differently, and a continued text has none
        return
    with torch.no_grad():
        whole, first = back(input_ids=ids), back(input_ids=ids[:, :4])
        rest = back(input_ids=ids[:, 4:], mems=first.mems)
        close(torch.cat((first.logits, rest.logits), 1), whole.logits)
        one, far = asked(8), torch.zeros(2, T, T)
        far[:, :, 8] = 1
        ends = back(input_ids=ids[:, 4:], mems=first.mems, perm_mask=far[:, 4:, 4:], target_mapping=one[..., 4:])
        close(ends.logits, back(input_ids=ids, perm_mask=far, target_mapping=one).logits)


@pytest.mark.parametrize("name", POSITIONS)
def test_packed_documents(name: str) -> None:
    model, ids = af.build(spec(attention(POSITIONS[name]))).eval(), text()
    documents, hidden = torch.tensor([[0] * 4 + [1] * 5]).expand(2, T), torch.zeros(2, T, T)
    hidden[:, :, [2, 6]] = 1
    with torch.no_grad():
        both = model(input_ids=ids, document_ids=documents, perm_mask=hidden, target_mapping=asked(6, 2)).logits
        first = model(input_ids=ids[:, :4], perm_mask=hidden[:, :4, :4], target_mapping=asked(2)[..., :4]).logits
        second = model(input_ids=ids[:, 4:], perm_mask=hidden[:, 4:, 4:], target_mapping=asked(6)[..., 4:]).logits
    close(both, torch.cat((second, first), 1))


def test_the_same_reach_for_all() -> None:
    """With four cached tokens, each token sees four earlier ones; in one layer, an older token has no effect."""
    model = af.build(af.override(spec(attention(None, CAUSAL & SameReach())), {"encoder.depth": 1})).eval()
    ids, kept = text(), torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        plain = model(input_ids=ids, mems=[kept]).logits
        other = ids.clone()
        other[:, 0] = other[:, 0] % (V - 1) + 1
        found = model(input_ids=other, mems=[kept]).logits
    seen = [not torch.allclose(found[:, i], plain[:, i], atol=1e-6) for i in range(T)]
    assert seen == [True] * 5 + [False] * 4


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: spec(LSTM(width=16)), "layers.attention.op: LSTM cannot attend to a longer sequence"),
        (lambda: af.override(spec(attention()), {"encoder.layers": Block(
            feedforward=Sublayer(op=MLP(width=8)), attention=Sublayer(op=attention()))}),
         "layers.attention: memories are the input of a layer, so only its first step can be attention"),
        (lambda: af.build(spec(attention(Rope())), device="meta"), "position: Rope changes"),
        (lambda: spec(attention(), layer_drop=0.1), "TwoStreams.layer_drop"),
        (lambda: spec(attention(), kept=0), "kept"),
        (lambda: spec(attention()).replace(embedding=TextEmbedding(tokens=Tokens(vocab_size=V))), "OrderedText does"),
        (lambda: spec(attention()).replace(encoder=Stack(layers=spec(attention()).encoder.layers, depth=1)),
         "TwoStreams would"),
        (lambda: DecoderModel(width=16, embedding=OrderedText(tokens=Tokens(vocab_size=V)), head=LMHead(vocab_size=V),
                              decoder=TwoStreams(layers=spec(attention(None, CAUSAL)).encoder.layers, depth=1)),
         "embedding: OrderedText lets a token see the future"),
    ],
)  # fmt: skip
def test_what_cannot_stand_there_is_one_line(make: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line) as error:
        make()
    assert "\n" not in str(error.value)
