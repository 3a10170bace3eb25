"""Perceivers with other Parts than published ones, short texts, rereading, and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import anyformer as af
from anyformer.models import EncoderModel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.set_transformer import LunaAttention
from anyformer.parts.embedding.patches import PatchEmbedding
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.grid.windows import Windows
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.pooling import LastToken, MeanTokens
from anyformer.parts.head.span import SpanHead
from anyformer.parts.head.tag import TagHead
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.parts.position.numbering import WithoutToken
from anyformer.stacks.block import Block
from anyformer.stacks.perceiver import Look, Perceiver, Write
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from small import close, filled

D, W, N, T, L = 12, 8, 5, 7, 40
MLP_ = MLP(width=16)
LAYER = Block(attention=Sublayer(pre_norm=LayerNorm(), op=Attention(num_heads=2)), feedforward=Sublayer(op=MLP_))
LOOK = Look(num_heads=2, feedforward=MLP_)
PART = Perceiver(latents=N, width=W, read=LOOK, stack=Stack(layers=LAYER, depth=2))
WRITE = Write(look=LOOK, position=Learned(length=L))
SMALL = {
    "vocab_size": 40, "num_latents": N, "d_latents": W, "d_model": 16, "num_self_attends_per_block": 2,
    "num_self_attention_heads": 2, "num_cross_attention_heads": 2, "max_position_embeddings": L,
}  # fmt: skip


def described(part: Any = PART, **more: Any) -> EncoderModel:
    embedding = TextEmbedding(tokens=Tokens(vocab_size=40), position=Learned(length=L))
    return EncoderModel(**{"width": D, "embedding": embedding, "encoder": part, "init": {"*": Normal(std=0.3)}, **more})


def model(part: Any = PART, **more: Any) -> Any:
    return filled(af.build(described(part, **more)))


def text(length: int = T, batch: int = 2) -> Tensor:
    return torch.randint(1, 40, (batch, length), generator=torch.Generator().manual_seed(length))


def look(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """The formula of Look: x + softmax(q k / sqrt(K)) v of the normed x and y, then a feed-forward step."""
    a, (n, m) = module.attention, (module.pre_norm(x), module.source_norm(y))
    q, k, v = (t.unflatten(-1, (2, -1)) for t in (a.q(n), a.k(m), a.v(m)))
    weights = (torch.einsum("bthk,bshk->bhts", q, k) / q.shape[-1] ** 0.5).softmax(-1)
    x = x + a.o(torch.einsum("bhts,bshk->bthk", weights, v).flatten(2))
    return x + module.feedforward(module.norm(x), None)


def test_an_output_position_for_tokens_that_numbering_omits() -> None:
    tokens = TextEmbedding(tokens=Tokens(vocab_size=40), numbering=WithoutToken(token=1))
    with pytest.raises(ValueError, match=r"^encoder\.write\.position: WithoutToken gives some tokens position -1"):
        described(PART.replace(write=WRITE), embedding=tokens)
    moved = WRITE.replace(position=Learned(length=L, offset=1))
    pads = F.pad(text(), (0, 3), value=1)
    found = model(PART.replace(write=moved), embedding=tokens)(input_ids=pads, attention_mask=(pads != 1).long())
    assert found.last_hidden_state.isfinite().all()


@pytest.mark.parametrize("rounds, reread", [(1, False), (3, False), (2, True)])
def test_formula(rounds: int, reread: bool) -> None:
    """`read`, then the stack, repeated `rounds` times; the output has one vector per token."""
    whole, x = model(PART.replace(rounds=rounds, reread=reread, write=WRITE)), torch.randn(2, T, D)
    encoder, plain = whole.encoder, filled(af.build(described(PART.stack, width=W, embedding=TextEmbedding(
        tokens=Tokens(vocab_size=40)))))  # fmt: skip
    plain.encoder.load_state_dict(encoder.stack.state_dict())
    z = encoder.latents.expand(2, -1, -1)
    read = x + whole.embedding.position.weight[:T]
    for i in range(rounds):
        z = look(encoder.read, z, read) if i == 0 or reread else z
        z = plain(inputs_embeds=z).last_hidden_state
    places = encoder.write.position.weight[:T].expand(2, -1, -1)
    close(whole(inputs_embeds=x).last_hidden_state, look(encoder.write.look, places, z))


@pytest.mark.parametrize("write", [None, WRITE, WRITE.replace(count=3, position=Learned(length=3))])
def test_pads_rows_and_gradients(write: Any) -> None:
    whole, ids = model(PART.replace(write=write, rounds=2, reread=True)), text()
    out = whole(input_ids=ids).last_hidden_state
    assert out.shape == {None: (2, N, W), WRITE: (2, T, D)}.get(write, (2, 3, D))
    own = {(32, 0): slice(32, None), (0, 32): slice(0, T)} if write is WRITE else {(32, 0): ..., (0, 32): ...}
    for widths, cut in own.items():
        padded = {"input_ids": F.pad(ids, widths, value=3), "attention_mask": F.pad(torch.ones_like(ids), widths)}
        for whole.kernel in ("eager", "sdpa"):
            found = whole(**padded).last_hidden_state
            close(found if cut is ... else found[:, cut], out)
    close(torch.cat([whole(input_ids=row[None]).last_hidden_state for row in ids]), out)
    out.square().sum().backward()
    assert [name for name, parameter in whole.named_parameters() if parameter.grad is None] == []


def test_only_reading_and_writing_cost_more_for_longer_texts() -> None:
    wide = PART.replace(write=WRITE.replace(position=Learned(length=512)))
    whole = model(wide, embedding=TextEmbedding(tokens=Tokens(vocab_size=40)), head=TagHead(num_labels=2))
    found, counted = {}, af.count(whole.spec)
    for length in (128, 256, 512):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
            whole(input_ids=text(length, 1))
        found[length] = counter.get_total_flops()
        assert counted.flops(length) == found[length]
    assert found[512] - found[256] == 2 * (found[256] - found[128])
    assert counted.parameters == sum(parameter.numel() for parameter in whole.parameters())


def test_a_published_model_reads_short_texts(tmp_path: Any) -> None:
    """The published class returns logits for all positions, however short the text; ours can also return only those of
    the tokens."""
    import transformers

    theirs = transformers.PerceiverForMaskedLM(transformers.PerceiverConfig(**SMALL)).eval()
    theirs.save_pretrained(tmp_path)
    ours, ids = af.load(tmp_path), text()
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    with torch.no_grad():
        expected = theirs(inputs=ids, attention_mask=mask).logits
        found = ours(input_ids=ids, attention_mask=mask).logits
        assert found.shape == (2, L, 40)
        close(found, expected, 1e-5)
        short = af.build(af.override(ours.spec, {"encoder.write.count": None})).eval()
        short.load_state_dict(ours.state_dict())
        close(short(input_ids=ids, attention_mask=mask).logits, expected[:, :T], 1e-5)
        left = {"input_ids": F.pad(ids, (9, 0), value=3), "attention_mask": F.pad(torch.ones_like(ids), (9, 0))}
        close(short(**left).logits[:, 9:], theirs(inputs=ids).logits[:, :T], 1e-5)  # N4
    with pytest.raises(ValueError, match="labels"):  # as in the published class
        ours(input_ids=ids, labels=ids)
    assert short(input_ids=ids, labels=ids).loss.isfinite()


def test_images_and_pictures_of_it() -> None:
    embedding = PatchEmbedding(image_size=(8, 12), patch_size=(4, 4), channels=2)
    head = ClassifyHead(num_labels=3, pool=Pool(take=MeanTokens()))
    whole = model(PART, embedding=embedding, head=head)
    assert whole(pixel_values=torch.randn(2, 2, 8, 12)).logits.shape == (2, 3)
    assert f"{N} × {W}" in af.draw(whole.spec).svg and "Look" in af.draw(whole.spec).svg


@pytest.mark.parametrize("made, line", [
    (lambda: described(head=SpanHead()), r"^head: SpanHead reads one vector per token, .* encoder\.write"),
    (lambda: described(head=ClassifyHead(num_labels=2, pool=Pool(take=LastToken()))), r"^head: ClassifyHead reads"),
    (lambda: PART.replace(reread=True), r"^Perceiver\.reread is True"),
    (lambda: PART.replace(rounds=2, stack=PART.stack.replace(norm=LayerNorm())), r"^Perceiver\.stack\.norm .* rounds"),
    (lambda: PART.replace(stack=af.override(PART.stack, {"layers.attention.op": LunaAttention(num_heads=2, tokens=2)})),
     r"^Perceiver\.stack: .*share parameters; set handed_on=False"),
    (lambda: PART.replace(stack=af.override(PART.stack, {"layers.attention.op": Windows(mixer=MLP_, size=2)})),
     r"^Perceiver\.stack.*: Windows needs a grid, which latents do not have"),
    (lambda: WRITE.replace(count=3), r"^Write\.position\.length is 40, but Write\.count is 3"),
    (lambda: LOOK.replace(feedforward=MLP(width=3, out=4)), r"^Look\.feedforward\.out"),
    (lambda: model()(input_ids=text(), document_ids=torch.zeros(2, T, dtype=torch.long)), "documents cannot be packed"),
])  # fmt: skip
def test_refused(made: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        made()


def test_named() -> None:
    """201 million parameters, as in the paper."""
    assert af.count(af.spec("perceiver-language")).parameters == 201_108_230
