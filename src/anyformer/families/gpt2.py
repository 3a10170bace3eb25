"""GPT-2 [Radford et al. 2019] and GPT-3 [Brown et al. 2020]: pre-norm decoder, learned positions, tied embeddings."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import (
    Class,
    activation,
    choice,
    conv1d,
    derived,
    divides,
    optional_step,
    read_only,
    tied,
)
from anyformer.families.shared.heads import causal_mask
from anyformer.families.shared.summary import DOUBLE_HEAD_FIELDS, double_template
from anyformer.parts import (
    Attention, Block, Causal, ClassifyHead, DecoderModel, LMHead, LastToken, LayerNorm, Learned, MLP, Normal, Pool,
    ScaleByLayer, SpanHead, Stack, Sublayer, TagHead, TextEmbedding, TokenSegments, Tokens,
)  # fmt: skip

INNER, LAYER = "decoder.layers.feedforward.op", "decoder.layers.{i}"
NORM, RESIDUAL = LayerNorm(eps=1e-5), Normal(std=0.02, residual=True)
HEADS: dict[str, Any] = {"num_heads": 12, "head_width": 64, "dropout": 0.1}

TEMPLATE = DecoderModel(
    width=768,
    embedding=TextEmbedding(
        tokens=Tokens(vocab_size=50257), position=Learned(length=1024), segments=TokenSegments(), dropout=0.1
    ),
    decoder=Stack(
        depth=12,
        layers=Block(
            attention=Sublayer(pre_norm=NORM, op=Attention(**HEADS, mask=Causal()), dropout=0.1),
            cross=Sublayer(pre_norm=NORM, op=Attention(**HEADS, memory=True), dropout=0.1),  # if add_cross_attention
            feedforward=Sublayer(pre_norm=NORM, op=MLP(width=3072, activation="gelu_tanh"), dropout=0.1),
        ),
        norm=NORM,
    ),
    # experts are initialised like a feed-forward
    init={"*.o.weight": RESIDUAL, "*.down.weight": RESIDUAL, "*.experts.down": RESIDUAL, "*": Normal(std=0.02)},
)

CONFIG: dict[str, Any] = {
    "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size", "head.lm.vocab_size"),
    "n_positions": "embedding.position.length",
    "n_embd": "width",
    "n_layer": "decoder.depth",
    "n_head": "decoder.layers.*.op.num_heads",
    "n_inner": derived(f"{INNER}.width", of=lambda c: 4 * c.n_embd, usual=lambda spec: 4 * spec.width),
    "activation_function": activation(f"{INNER}.activation"),
    "resid_pdrop": "decoder.layers.*.dropout",
    "embd_pdrop": "embedding.dropout",
    "attn_pdrop": "decoder.layers.*.op[Attention].dropout",
    "layer_norm_epsilon": ("decoder.norm.eps", "decoder.layers.*.pre_norm.eps"),
    "initializer_range": "init.*.std",
    "scale_attn_weights": choice("decoder.layers.*.op[Attention].scale", {True: None, False: 1.0}),
    "scale_attn_by_inverse_layer_idx": choice("decoder.layers.*.op.scores", {False: (), True: (ScaleByLayer(),)}),
    "add_cross_attention": optional_step("decoder.layers.cross"),
    "tie_word_embeddings": tied(True, LMHead="head.out.weight", DoubleHead="head.lm.out.weight"),
    "pad_token_id": "head.pool.take.padding_token",
    "is_causal": causal_mask("decoder.layers.attention.op.mask"),
    "bos_token_id": Ignored(50256, "used by generation"),
    "eos_token_id": Ignored(50256, "used by generation"),
    "reorder_and_upcast_attn": Ignored(False, "softmax is computed in fp32 anyway"),
    "classifier_dropout": read_only(
        addresses=("head[TagHead].dropout",),
        read=lambda value, c: next((p for p in (value, c.hidden_dropout) if p is not None), 0.1),
    ),
    "hidden_dropout": read_only(),
    "n_ctx": Ignored(1024, "an old name of n_positions that nothing reads"),
    **DOUBLE_HEAD_FIELDS,
}

WEIGHTS = {
    "~wte": "embedding.tokens",
    "~wpe": "embedding.position",
    "~h.{i}.ln_1": f"{LAYER}.attention.pre_norm",
    "~h.{i}.attn.c_attn": conv1d(f"{LAYER}.attention.op.{{q,k,v}}"),
    "~h.{i}.attn.c_proj": conv1d(f"{LAYER}.attention.op.o"),
    "~h.{i}.ln_cross_attn": f"{LAYER}.cross.pre_norm",
    "~h.{i}.crossattention.q_attn": conv1d(f"{LAYER}.cross.op.q"),
    "~h.{i}.crossattention.c_attn": conv1d(f"{LAYER}.cross.op.{{k,v}}"),
    "~h.{i}.crossattention.c_proj": conv1d(f"{LAYER}.cross.op.o"),
    "~h.{i}.ln_2": f"{LAYER}.feedforward.pre_norm",
    "~h.{i}.mlp.c_fc": conv1d(f"{LAYER}.feedforward.op.up"),
    "~h.{i}.mlp.c_proj": conv1d(f"{LAYER}.feedforward.op.down"),
    "~ln_f": "decoder.norm",
}


def size(n_layer: int, n_embd: int, n_head: int, published: float, n_positions: int = 1024, note: str = "") -> Size:
    config = {"n_layer": n_layer, "n_embd": n_embd, "n_head": n_head, "n_positions": n_positions}
    return Size(config, published, note)


XL_NOTE = "the paper's table has 24 heads of 128 at width 2048; 16 heads give the published 1.3B"
B13_NOTE = "the paper's table has width 5140; 40 heads of 128 make 5120, which gives the published 13B"

GPT2 = Family(
    name="gpt2",
    about="decoder language models",
    tokenizer="GPT2Tokenizer",
    template=TEMPLATE,
    classes={
        "GPT2LMHeadModel": Class(LMHead(vocab_size=50257), "lm_head"),
        "GPT2Model": Class(prefix=""),
        "GPT2ForSequenceClassification": Class(
            ClassifyHead(num_labels=2, pool=Pool(take=LastToken()), bias=False), "score"
        ),
        "GPT2ForTokenClassification": Class(TagHead(num_labels=2, dropout=0.1), "classifier"),
        "GPT2ForQuestionAnswering": Class(SpanHead(), "qa_outputs"),
        "GPT2DoubleHeadsModel": Class(
            double_template(50257),
            weights={"lm_head": "head.lm.out", "multiple_choice_head.summary": "head.summary.dense"},
        ),
    },
    config=CONFIG,
    computed={"decoder.layers.*.op.head_width": lambda c: c.n_embd // c.n_head},
    weights=WEIGHTS,
    prefix="transformer.",
    checks=(divides("n_head", "n_embd"),),
    aliases={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    dropped=("~h.{i}.attn.bias", "~h.{i}.attn.masked_bias", "~h.{i}.crossattention.bias"),
    sizes={
        "gpt2": size(12, 768, 12, 124e6),
        "gpt2-medium": size(24, 1024, 16, 355e6),
        "gpt2-large": size(36, 1280, 20, 774e6),
        "gpt2-xl": size(48, 1600, 25, 1.56e9),
        "gpt3-small": size(12, 768, 12, 125e6, 2048),
        "gpt3-medium": size(24, 1024, 16, 350e6, 2048),
        "gpt3-large": size(24, 1536, 16, 760e6, 2048),
        "gpt3-xl": size(24, 2048, 16, 1.3e9, 2048, XL_NOTE),
        "gpt3-2.7b": size(32, 2560, 32, 2.7e9, 2048),
        "gpt3-6.7b": size(32, 4096, 32, 6.7e9, 2048),
        "gpt3-13b": size(40, 5120, 40, 13e9, 2048, B13_NOTE),
        "gpt3-175b": size(96, 12288, 96, 175e9, 2048),
    },
)
