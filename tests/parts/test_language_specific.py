"""One op per language, chosen by the language token: each token gets the result of its language's op."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer import families
from anyformer.parts.attention.attention import Attention
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.feedforward.moe import MoE
from anyformer.parts.feedforward.routers import TopK
from anyformer.parts.language_specific import LanguageSpecific
from anyformer.parts.mask import Causal
from anyformer.runtime.context import Context, TokenIds
from anyformer.specs.part import Site
from small import close
from swaps import V, plain

LANGUAGES = (30, 31, 32)
OP, ATTENTION = "decoder.layers.feedforward.op", "decoder.layers.attention.op"


@torch.no_grad()
def test_each_token_goes_through_the_op_of_its_language() -> None:
    torch.manual_seed(0)
    op = LanguageSpecific(op=MLP(width=8), tokens=LANGUAGES).build(Site(width=6, address="op"))
    x, index = torch.randn(3, 6, 6), torch.arange(6)
    ids = torch.tensor([[1, 31, 2, 2, 30, 2], [32, 2, 2, 2, 2, 2], [2, 2, 2, 2, 2, 32]])
    expected = [[0, 1, 1, 1, 0, 0], [2] * 6, [0, 0, 0, 0, 0, 2]]
    ctx = Context(index=index, positions=index[None], extras=(TokenIds(ids),))
    by_hand = torch.stack([torch.stack([op.op[e](x[b, t][None, None], ctx)[0, 0] for t, e in enumerate(row)])
                           for b, row in enumerate(expected)])  # fmt: skip
    close(op(x, ctx), by_hand, 1e-6)
    hidden = torch.ones(3, 6, dtype=torch.bool)
    hidden[0, 1] = hidden[2, 5] = False  # pads do not choose a language
    assert op.languages(ctx.replace(is_token=hidden))[[0, 2], [1, 5]].tolist() == [0, 0]
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]] * 3)
    assert op.languages(ctx.replace(documents=documents)).tolist() == [
        [0, 1, 1, 0, 0, 0],
        [2] * 3 + [0] * 3,
        [0] * 5 + [2],
    ]
    # the first document of a call continues the text before the call, in its language; later ones start a new text
    stores = {"op": SimpleNamespace(tensors={"language": torch.tensor([[2], [1], [1]])})}
    going_on = ctx.replace(documents=documents, state=SimpleNamespace(stores=stores))
    assert op.languages(going_on).tolist() == [[2, 1, 1, 0, 0, 0], [2] * 3 + [0] * 3, [1] * 3 + [0, 0, 2]]
    with pytest.raises(ValueError, match="op: .*pass input_ids"):
        op.languages(ctx.replace(extras=()))


def model(**changes: Any) -> Any:
    spec = af.override(plain(), {OP: LanguageSpecific(op=MLP(width=24), tokens=LANGUAGES), **changes})
    return af.build(spec, seed=0).eval()


@pytest.mark.parametrize("mixer", [False, True], ids=["feedforward", "attention too"])
def test_rows_of_several_languages_are_written_as_alone(mixer: bool) -> None:
    attention = LanguageSpecific(op=Attention(num_heads=4, mask=Causal()), tokens=LANGUAGES)
    made = model(**({ATTENTION: attention} if mixer else {}))
    ids = torch.randint(1, 30, (3, 5), generator=torch.Generator().manual_seed(0))
    ids[0, 0], ids[1, 1], ids[2, 0] = 31, 32, 30
    options = {"max_new_tokens": 8, "eos_token_id": [], "pad_token_id": 0}
    written = af.generate(made, input_ids=ids, **options)
    assert torch.equal(af.generate(made, input_ids=ids, **options, use_cache=False), written)
    for row in range(3):
        assert torch.equal(af.generate(made, input_ids=ids[row : row + 1], **options)[0], written[row])
    mask = F.pad(torch.ones(3, 5, dtype=torch.long), (2, 0))
    padded = af.generate(made, input_ids=F.pad(ids, (2, 0), value=31), attention_mask=mask, **options)
    assert torch.equal(padded[:, 7:], written[:, 5:])
    beams = af.generate(made, input_ids=ids, num_beams=3, **options)
    assert torch.equal(af.generate(made, input_ids=ids, num_beams=3, use_cache=False, **options), beams)


@torch.no_grad()
def test_a_translation_model_chooses_by_the_target_language() -> None:
    """A model with only one language's weights gives the same scores for that language."""
    small = {"vocab_size": V, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "init_std": 0.5,
             "max_position_embeddings": 32, "architectures": ["M2M100ForConditionalGeneration"]}  # fmt: skip
    one = families.find("m2m_100").read(small)
    mlp = one.decoder.layers.steps["feedforward"].op
    many = af.override(one, {OP: LanguageSpecific(op=mlp, tokens=LANGUAGES)})
    many, one = af.build(many, seed=0).eval(), af.build(one, seed=1).eval()
    ids, target = torch.randint(3, 30, (2, 6)), torch.randint(3, 30, (2, 5))
    for i, language in enumerate(LANGUAGES):
        names = {f"{OP.replace('layers', 'layers.0')}.op.{i}.", f"{OP.replace('layers', 'layers.0')}.{i}."}
        state = many.state_dict()
        own = next(name for name in names if any(key.startswith(name) for key in state))
        one.load_state_dict(
            {key.replace(own, own.removesuffix(f"op.{i}.")): v for key, v in state.items()}, strict=False
        )
        target[:, 0] = language
        close(many(input_ids=ids, decoder_input_ids=target).logits, one(input_ids=ids, decoder_input_ids=target).logits)


def test_what_it_costs_and_what_it_refuses() -> None:
    spec, one = model().spec, plain()
    count, mlp = af.count(spec), 2 * (2 * 16 * 24 + 24 + 16)
    assert count.parameters == af.count(one).parameters + 2 * mlp
    assert count.active == af.count(one).parameters and count.flops(10) == af.count(one).flops(10)
    assert af.check(LanguageSpecific(op=MLP(width=8), tokens=(5, 30))).passed  # both tokens occur in the check's text
    experts = MoE(num_experts=2, router=TopK(), expert=MLP(width=8))
    for wrong in ({"op": experts, "tokens": (1,)}, {"op": MLP(width=8), "tokens": (1, 1)}):
        with pytest.raises(ValueError, match="LanguageSpecific"):
            LanguageSpecific(**wrong)
