"""Checks of a whole description: requirements between its Parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anyformer as af
from anyformer import families
from anyformer.models import DecoderModel, EncoderDecoderModel, EncoderModel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.big_bird import BlockSparseAttention
from anyformer.parts.attention.latent import LatentAttention
from anyformer.parts.attention.linear import LinformerAttention
from anyformer.parts.attention.longformer import LocalAttention
from anyformer.parts.embedding.global_text import GlobalTextEmbedding
from anyformer.parts.embedding.patches import PatchEmbedding
from anyformer.parts.embedding.spec_augment import SpecAugment
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.embedding.trajectory import TrajectoryEmbedding
from anyformer.parts.embedding.vectors import Vectors
from anyformer.parts.embedding.waveform import ConvolutionStem, WaveformEmbedding
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.grid.windows import Windows
from anyformer.parts.halve import Halve
from anyformer.parts.head.classify import ClassifyHead, MultipleChoiceHead
from anyformer.parts.head.image import PixelHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.pooling import LastToken
from anyformer.parts.head.question_span import QuestionHead
from anyformer.parts.head.speech import SpeechOutput
from anyformer.parts.init import Normal
from anyformer.parts.mask import CAUSAL
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Alibi, Integer, RelativeVectors, TreeDepth
from anyformer.parts.position.grid import GridBias
from anyformer.parts.position.relative import InputRope
from anyformer.parts.position.rotary import Rope
from anyformer.runtime.context import Context
from anyformer.specs.part import Site
from anyformer.stacks.backbone import Backbone
from anyformer.stacks.block import Block
from anyformer.stacks.funnel import Funnel
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from small import close

TEXT = TextEmbedding(tokens=Tokens(vocab_size=9))
IMAGE = PatchEmbedding(image_size=(4, 4), patch_size=(2, 2))
WAVES = WaveformEmbedding(
    stem=ConvolutionStem(widths=(8,), kernels=(4,), strides=(2,), norm="layer"), augment=SpecAugment(active=False)
)  # fmt: skip
CROSS = Attention(num_heads=2, memory=True)
INIT = {"*": Normal(std=0.3)}


def stack(*ops: Any) -> Stack:
    return Stack(layers=Block(**{f"step{i}": Sublayer(op=op) for i, op in enumerate(ops)}), depth=1)


@pytest.mark.parametrize("embedding, op, head, line", [
    (TEXT, Windows(mixer=MLP(width=4), size=2), None, "encoder.layers.step0.op: Windows needs a grid, which"
     r" TextEmbedding does not give; PatchEmbedding\(prefix=\(\)\) does"),
    (TEXT, Attention(num_heads=2, position=GridBias(num_heads=2, size=2)), None, "position: GridBias needs a grid"),
    (TEXT, LocalAttention(num_heads=2, window=2), None, "needs global tokens, .*; GlobalTextEmbedding does"),
    (TEXT, MLP(width=4), PixelHead(channels=3, stride=2, patch_size=(2, 2)), "head: PixelHead needs an image"),
    (TEXT, MLP(width=4), QuestionHead(separator=1, feedforward=MLP(width=4), norm=LayerNorm()), "needs segments"),
    (TEXT, MLP(width=4), SpeechOutput(), "SpeechOutput needs a waveform"),
    (IMAGE, Attention(num_heads=2, position=RelativeVectors(before=2, tree=True)), None, "needs a row of tokens"),
    (WAVES.replace(position=TreeDepth(scheme=Integer())), MLP(width=4), None, "embedding.position: TreeDepth needs a"
     " row of tokens, which WaveformEmbedding does not give; TextEmbedding does"),
    (IMAGE, MLP(width=4), MultipleChoiceHead(pool=Pool()), "MultipleChoiceHead needs a row of tokens"),
    (Vectors(), MLP(width=4), ClassifyHead(num_labels=2, pool=Pool(take=LastToken())),
     "head.pool.take: LastToken needs token ids"),
])  # fmt: skip
def test_what_parts_need_their_embedding_gives(embedding: Any, op: Any, head: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        EncoderModel(width=8, embedding=embedding, encoder=stack(op), head=head)


QUESTION = QuestionHead(separator=1, feedforward=MLP(width=4), norm=LayerNorm())


def test_what_is_given_is_taken() -> None:
    text, local = GlobalTextEmbedding(tokens=Tokens(vocab_size=9), segments=2), LocalAttention(num_heads=2, window=2)
    windows = EncoderModel(width=8, embedding=IMAGE, encoder=stack(Windows(mixer=MLP(width=4), size=2)), init=INIT)
    assert af.build(windows)(pixel_values=torch.randn(1, 3, 4, 4)).last_hidden_state.shape == (1, 4, 8)
    answers = af.build(EncoderModel(width=8, embedding=text, encoder=stack(local), head=QUESTION, init=INIT))
    assert answers(input_ids=torch.tensor([[3, 1, 4, 5, 1]])).start_logits.shape == (1, 5)


def test_each_packed_text_has_its_own_question() -> None:
    """The masks of packed texts are the masks of each text alone; the last text has no separator."""
    text = GlobalTextEmbedding(tokens=Tokens(vocab_size=9), segments=2)
    head = af.build(EncoderModel(width=8, embedding=text, encoder=stack(MLP(width=4)), head=QUESTION, init=INIT)).head
    texts = [torch.tensor([ids]) for ids in ([3, 1, 4, 5, 1], [6, 7, 8, 1, 2, 3, 1], [5, 4])]
    rows = [texts, [texts[1], texts[0], texts[2]]]
    documents = [torch.cat([torch.full_like(ids, i) for i, ids in enumerate(row)], 1) for row in rows]
    tokens = torch.cat([torch.cat(row, 1) for row in rows])
    packed = head.question({"input_ids": tokens, "document_ids": torch.cat(documents)})
    for i, found in enumerate(packed):
        alone = [[head.question({"input_ids": ids})[i].expand_as(ids) for ids in row] for row in rows]
        assert torch.equal(found, torch.cat([torch.cat(row, 1) for row in alone]))
    assert packed[0][0].int().tolist() == [1, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0]


def test_a_head_that_reads_a_whole_text_has_no_past() -> None:
    text, causal = TEXT.replace(segments=2), stack(Attention(num_heads=2, mask=CAUSAL))
    model = af.build(DecoderModel(width=8, embedding=text, decoder=causal, head=QUESTION, init=INIT))
    assert not model.remembers
    with pytest.raises(ValueError, match="^head does not support caching: pass use_cache=False"):
        model.new_state()
    with pytest.raises(ValueError, match="^head: QuestionHead.*use SpanHead"):
        EncoderDecoderModel(
            width=8, embedding=text, encoder=causal, decoder_embedding=text, decoder=stack(CROSS), head=QUESTION
        )  # fmt: skip


def test_an_image_is_read_at_once() -> None:
    causal = stack(Attention(num_heads=2, mask=CAUSAL))
    model = af.build(DecoderModel(width=8, embedding=IMAGE, decoder=causal, init=INIT))
    assert not model.remembers and model(pixel_values=torch.randn(1, 3, 4, 4)).last_hidden_state.shape == (1, 4, 8)


def test_pixels_are_drawn_as_they_were_read() -> None:
    for head, line in (
        (PixelHead(channels=3, stride=2, patch_size=(2, 4)), r"head.patch_size is \(2, 4\), but embedding.patch_size"),
        (PixelHead(channels=1, stride=2, patch_size=(2, 2)), "head.channels is 1, but embedding.channels is 3"),
    ):
        with pytest.raises(ValueError, match=line):
            EncoderModel(width=8, embedding=IMAGE.replace(mask_token=True), encoder=stack(MLP(width=4)), head=head)


def test_the_last_token_of_a_pair_is_the_decoders() -> None:
    pool = Pool(take=LastToken(padding_token=0))
    spec = EncoderDecoderModel(
        width=8, embedding=TEXT, encoder=stack(MLP(width=4)), decoder_embedding=TEXT, decoder=stack(CROSS),
        head=ClassifyHead(num_labels=2, pool=pool), init=INIT,
    )  # fmt: skip
    model, source, ids = af.build(spec).eval(), torch.tensor([[5, 6, 7, 8, 0]]), torch.tensor([[1, 2, 3]])
    alone = model(input_ids=source, decoder_input_ids=ids).logits
    close(model(input_ids=source, decoder_input_ids=torch.tensor([[1, 2, 3, 0, 0]])).logits, alone, 1e-6)
    with pytest.raises(ValueError, match="decoder_input_ids"):
        model(input_ids=source, decoder_inputs_embeds=torch.randn(1, 3, 8))


def test_the_memory_of_a_pair_is_padded_as_the_encoder_says_it() -> None:
    """An audio frame covers many samples, so the memory's mask is shorter than the samples' mask."""
    spec = EncoderDecoderModel(
        width=8, embedding=WAVES, encoder=stack(MLP(width=4)), decoder_embedding=TEXT, decoder=stack(CROSS),
        head=LMHead(vocab_size=9), init=INIT,
    )  # fmt: skip
    model, samples, ids = af.build(spec).eval(), torch.randn(2, 40), torch.tensor([[1, 2], [3, 4]])
    padded, mask = torch.nn.functional.pad(samples, (0, 32)), torch.zeros(2, 72).long()
    mask[:, :40] = 1
    with torch.no_grad():
        alone = model(input_values=samples, decoder_input_ids=ids).logits
        close(model(input_values=padded, attention_mask=mask, decoder_input_ids=ids).logits, alone, 1e-5)
    for more in ({"input_values": samples}, {"input_values": padded, "attention_mask": mask}):
        written = af.generate(model, **more, decoder_input_ids=ids, max_new_tokens=3, do_sample=False, eos_token_id=[])
        assert written.shape == (2, 5)


def test_the_tree_of_a_source_is_read_before_writing() -> None:
    embedding = TEXT.replace(position=TreeDepth(scheme=Integer()))
    spec = EncoderDecoderModel(
        width=8, embedding=embedding, encoder=stack(MLP(width=4)), decoder_embedding=TEXT, decoder=stack(CROSS),
        head=LMHead(vocab_size=9), init=INIT,
    )  # fmt: skip
    given = {"input_ids": torch.tensor([[1, 2, 3]]), "tree_parents": torch.tensor([[-1, 0, 0]])}
    model, ids = af.build(spec).eval(), torch.tensor([[1]])
    written = af.generate(model, **given, decoder_input_ids=ids, max_new_tokens=1, do_sample=False, eos_token_id=[])
    assert written[0, -1] == model(**given, decoder_input_ids=ids).logits[0, -1].argmax()


def test_a_pair_is_joined_by_its_decoder() -> None:
    def pair(encoder: Stack, decoder: Stack) -> Any:
        return EncoderDecoderModel(
            width=8, embedding=TEXT, encoder=encoder, decoder_embedding=TEXT, decoder=decoder
        )  # fmt: skip

    pair(stack(MLP(width=4)), stack(Attention(num_heads=2, mask=CAUSAL), CROSS))
    with pytest.raises(ValueError, match="no layer of the decoder attends to the encoder; set memory=True"):
        pair(stack(MLP(width=4)), stack(Attention(num_heads=2, mask=CAUSAL)))
    with pytest.raises(ValueError, match="^encoder.layers.step0.op: cross-attention .*only for the decoder"):
        pair(stack(CROSS), stack(CROSS))


LATENT = LatentAttention(num_heads=2, rank=4, head_width=4, rotary_width=4, value_width=4, position=Rope())


class TimesTwo(Backbone, sees="itself"):
    """A backbone that no model names."""

    def build(self, site: Site) -> nn.Module:
        return TimesTwoModule()


class TimesTwoModule(nn.Module):
    def forward(self, x: torch.Tensor, ctx: Context) -> tuple[torch.Tensor, Context]:
        return 2 * x, ctx

    def collect_outputs(self, seen: Any) -> dict[str, list[torch.Tensor]]:
        return {}


def test_any_backbone_is_an_encoder(tmp_path: Path) -> None:
    text = TextEmbedding(tokens=Tokens(vocab_size=9))
    model = af.build(EncoderModel(width=8, embedding=text, encoder=TimesTwo(), init={"*": Normal(std=1.0)}), seed=0)
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(input_ids=ids).last_hidden_state, 2 * model.embedding.tokens(ids))
    af.save(model, tmp_path)
    assert af.load(tmp_path).spec.encoder == TimesTwo()


def test_a_decoder_reads_pictures_in_stages() -> None:
    """A Swin encoder and a text decoder; the cache changes nothing."""
    swin: Any = families.find("swin").read({
        "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4,
    })  # fmt: skip
    bart: Any = families.find("bart").read({
        "vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 20,
        "architectures": ["BartForConditionalGeneration"],
    })  # fmt: skip
    changes = {
        "embedding": swin.embedding, "encoder": swin.encoder, "decoder.layers.cross.op.memory_width": 32, "ties": (),
        "init": {"*": Normal(std=0.3)}, "reads_source": False,
    }  # fmt: skip
    spec = af.override(bart.replace(family="", architecture=""), changes)
    model, pixels = af.build(spec, seed=0).eval(), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    out = model(pixel_values=pixels, decoder_input_ids=torch.tensor([[2, 5, 6], [2, 7, 8]]))
    assert out.logits.shape == (2, 3, 50) and out.encoder_last_hidden_state.shape == (2, 16, 32)
    written = [af.generate(model, pixel_values=pixels, max_new_tokens=6, use_cache=use) for use in (True, False)]
    assert torch.equal(*written)
    perceiver: Any = families.find("perceiver").read({"architectures": ["PerceiverForMaskedLM"], "d_model": 16})
    with pytest.raises(ValueError, match="encoder: a decoder cannot read the output of Perceiver"):
        af.override(spec, {"encoder": perceiver.encoder})


def test_what_looks_at_a_longer_sequence() -> None:
    stages = (stack(MLP(width=4)), stack(LATENT))
    shorter = Funnel(stages=stages, pool=Halve(queries_only=False))  # keys and queries have the same length
    af.build(EncoderModel(width=8, embedding=TEXT, encoder=shorter, init=INIT))
    with pytest.raises(
        ValueError, match=r"^Funnel\.stages\.1\.layers\.0\.step0\.op: LatentAttention .*longer sequence"
    ):
        Funnel(stages=stages)


def test_a_stream_is_turned_in_whole_heads() -> None:
    turned = Attention(num_heads=1, head_width=6, position=InputRope())
    with pytest.raises(ValueError, match="position: InputRope .* heads of 6.* width 8"):
        af.build(EncoderModel(width=8, embedding=TEXT, encoder=stack(turned), init=INIT))


def test_a_projection_for_all_layers_stands_in_one_stack() -> None:
    shared = LinformerAttention(num_heads=2, length=9, projected=3, sharing="layerwise")
    af.build(EncoderModel(width=8, embedding=TEXT, encoder=stack(shared), init=INIT))
    with pytest.raises(ValueError, match="different Stacks cannot share parameters"):
        Funnel(stages=(stack(shared),))


def test_choices_of_episodes() -> None:
    """Choices may be any rows that the embedding reads; each input has one row per choice."""
    episodes = TrajectoryEmbedding(state_width=3, action_width=2, steps=9)
    spec = EncoderModel(
        width=8, embedding=episodes, encoder=stack(Attention(num_heads=2)), head=MultipleChoiceHead(pool=Pool()),
        init=INIT,
    )  # fmt: skip
    model, rows = af.build(spec).eval(), episodes.row(4, 8)
    inputs = {name: torch.randn(2, 5, *row) for name, row in rows.items()} | {"timesteps": torch.randint(9, (2, 5, 4))}
    logits = model(**inputs).logits
    alone = model(**{name: value[:, 3:4] for name, value in inputs.items()}).logits
    assert logits.shape == (2, 5)
    close(logits[:, 3:4], alone)


def test_blocks_take_no_shared_bias() -> None:
    """Block attention ignores the bias that layers of a stack share, for any length of text."""
    blocks = BlockSparseAttention(num_heads=2, block_size=1, random_blocks=0, length=12)
    layers = {"all": Block(step=Sublayer(op=Attention(num_heads=2))), "blocks": Block(step=Sublayer(op=blocks))}
    stack = Stack(layers=layers, pattern=("all", "blocks"), depth=2, position=Alibi(num_heads=2))
    model = af.build(EncoderModel(width=8, embedding=TEXT, encoder=stack, init=INIT)).eval()
    for length in (4, 12):
        assert model(input_ids=torch.arange(length)[None] % 9).last_hidden_state.isfinite().all()
        index, x = torch.arange(length), torch.randn(1, length, 8)
        ctx, op = Context(index=index, positions=index[None]), model.encoder.layers[1].step.op
        assert torch.equal(op(x, ctx), op(x, ctx.replace(bias=torch.randn(1, 2, length, length))))


def test_a_decoder_of_no_layers() -> None:
    """A config with n_layer 0 means embedding, norm and head, as in transformers."""
    model = af.build(af.override(af.spec("gpt2"), {"decoder.depth": 0, "width": 16}))
    assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 50257)


WHISPER = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 20, "num_mel_bins": 8, "max_source_positions": 10,
    "max_target_positions": 12, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3,
    "architectures": ["WhisperForConditionalGeneration"],
}  # fmt: skip


@pytest.mark.parametrize("weights, given", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_inputs_of_another_precision_are_read_in_that_of_the_weights(weights: torch.dtype, given: torch.dtype) -> None:
    """Processors return fp32, whatever the dtype of the model."""
    model = af.build(families.find("whisper").read(WHISPER), seed=0).eval().to(weights)
    sound = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(1)).to(given)
    start = torch.tensor([[3, 5]] * 2)
    expected = model(input_features=sound.to(weights), decoder_input_ids=start).logits
    assert torch.equal(model(input_features=sound, decoder_input_ids=start).logits, expected)
    written = [af.generate(model, input_features=x, max_new_tokens=5) for x in (sound, sound.to(weights))]
    assert torch.equal(*written)
