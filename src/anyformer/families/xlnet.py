"""XLNet [Yang et al. 2019]: Transformer-XL layers trained to predict tokens in any order. A second stream computes the
predictions: each position sees the tokens before it in that order, but not its own token."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored, Removed
from anyformer.families.base.template import Class, Config, Entry, activation, entry, expand, parameter, tied
from anyformer.families.shared.summary import check_pool, pool_entries
from anyformer.parts import (
    Attention, Block, ClassifyHead, EncoderModel, Full, LMHead, LastColumn, LayerNorm, LikelySpans, MLP, Mask,
    MultipleChoiceHead, Normal, OrderedText, Pool, SameReach, SegmentedSinusoids, SpanHead, Sublayer, TagHead, Tokens,
    TwoStreams,
)  # fmt: skip
from anyformer.parts.mask import CAUSAL, FULL
from anyformer.specs.addresses import value_at
from anyformer.specs.messages import nearest, quote
from anyformer.weights.rules import Flip, Heads, Reshape, Rule

ATTENTION, INNER = "encoder.layers.attention.op", "encoder.layers.feedforward.op"
OURS = "encoder.layers.{i}.attention.op"

NORM = LayerNorm(eps=1e-12)
TEMPLATE = EncoderModel(
    width=1024,
    embedding=OrderedText(tokens=Tokens(vocab_size=32000), dropout=0.1),
    encoder=TwoStreams(
        depth=24,
        layers=Block(
            attention=Sublayer(
                op=Attention(
                    num_heads=16,
                    bias="",
                    position=SegmentedSinusoids(num_heads=16, width=1024, joint=None, first_apart=False, dropout=0.1),
                    dropout=0.1,
                ),
                out_norm=NORM,
                dropout=0.1,
            ),
            feedforward=Sublayer(op=MLP(width=4096, activation="gelu", dropout=0.1), out_norm=NORM, dropout=0.1),
        ),
        dropout=0.1,
        shows="stream",
        kept=512,
    ),
    init={"*": Normal(std=0.02)},
)
POOL = Pool(take=LastColumn(), dense=True, activation="tanh", dropout=0.1)
TYPES = ("uni", "bi")


def mask(kind: str, c: Config) -> Mask:
    if kind not in TYPES:
        raise ValueError(f"attn_type={quote(kind)} is not valid; {nearest(str(kind), TYPES)}")
    return FULL if kind == "bi" else CAUSAL & SameReach() if c.same_length else CAUSAL


CONFIG: dict[str, Any] = {
    "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size"),
    "d_model": ("width", f"{ATTENTION}.position.width"),
    "n_layer": "encoder.depth",
    "n_head": (f"{ATTENTION}.num_heads", f"{ATTENTION}.position.num_heads"),
    "d_inner": f"{INNER}.width",
    "d_head": Entry(None, lambda spec: spec.width // value_at(spec, f"{ATTENTION}.num_heads")),
    "ff_activation": activation(f"{INNER}.activation"),
    "attn_type": entry(f"{ATTENTION}.mask", read=mask, write=lambda mask: TYPES[isinstance(mask, Full)]),
    "same_length": Entry(False, lambda spec: value_at(spec, f"{ATTENTION}.mask") == CAUSAL & SameReach()),
    "initializer_range": "init.*.std",
    "layer_norm_eps": "**.eps",
    "dropout": ("embedding.dropout", "encoder.dropout", "encoder.layers.**.dropout"),
    "mem_len": entry("encoder.kept", read=lambda value, c: value or None),
    "reuse_len": entry("encoder.reused", read=lambda value, c: value or None),
    "use_mems_eval": "encoder.keeps",
    "use_mems_train": "encoder.keeps_training",
    "bi_data": f"{ATTENTION}.position.mirrored",
    "clamp_len": entry(
        f"{ATTENTION}.position.most", read=lambda value, c: value if value > 0 else None, write=lambda most: most or -1
    ),
    **pool_entries("head.pool"),
    "start_n_top": "head.starts",
    "end_n_top": "head.ends",
    "tie_word_embeddings": tied(True, LMHead="head.out.weight"),
    "pad_token_id": Ignored(5, "a token id, used by tokenizers; its vector is not special"),
    "bos_token_id": Ignored(1, "a token id, used by tokenizers and generation"),
    "eos_token_id": Ignored(2, "a token id, used by tokenizers and generation"),
    "untie_r": Removed(True, "shared position biases in all layers; published classes never read it"),
}


def check(c: Config) -> None:
    if c.d_model % c.n_head or c.d_head not in (None, 0, c.d_model // c.n_head):
        raise ValueError(f"d_model {c.d_model} must equal n_head {c.n_head} x d_head {c.d_head}")
    if c.architecture == "XLNetForQuestionAnsweringSimple" and c.num_labels != 2:
        raise ValueError(f"num_labels must be 2 for question answering (start and end), got {c.num_labels}")
    check_pool(c, c.d_model, "XLNetForSequenceClassification", "XLNetForMultipleChoice")


def head_shape(spec: EncoderModel) -> tuple[int, int]:
    heads = value_at(spec, f"{ATTENTION}.num_heads")
    return heads, spec.width // heads


def head_rules(theirs: str, spec: EncoderModel) -> list[Rule]:
    ours = expand(f"{OURS}.{{q,k,v,position.project}}.weight")
    return [Heads(one, other, head_shape(spec)) for one, other in zip(expand(theirs), ours, strict=True)]


WEIGHTS: dict[str, Any] = {
    "~mask_emb": parameter("embedding.mask_embedding", (1, 1, -1)),
    "~word_embedding": "embedding.tokens",
    "~layer.{i}.rel_attn.{q,k,v,r}": head_rules,
    "~layer.{i}.rel_attn.o": lambda theirs, spec: [Reshape(theirs, f"{OURS}.o.weight", (-1, *head_shape(spec)))],
    "~layer.{i}.rel_attn.r_{w,r,s}_bias": parameter(f"{OURS}.position.{{u,v,s}}"),
    "~layer.{i}.rel_attn.seg_embed": lambda theirs, spec: [Flip(theirs, f"{OURS}.position.kinds")],
    "~layer.{i}.rel_attn.layer_norm": "encoder.layers.{i}.attention.out_norm",
    "~layer.{i}.ff.{layer_1,layer_2,layer_norm}": "encoder.layers.{i}.feedforward.{op.up,op.down,out_norm}",
    "sequence_summary.summary": "head.pool.dense",
}


def size(width: int, depth: int, published: float) -> Size:
    shape = {"d_model": width, "n_layer": depth, "n_head": width // 64, "d_inner": 4 * width}
    return Size({**shape, "mem_len": None}, published)


XLNET = Family(
    name="xlnet",
    about="text encoders trained to predict tokens in any order",
    tokenizer="XLNetTokenizer",
    template=TEMPLATE,
    classes={
        "XLNetLMHeadModel": Class(LMHead(vocab_size=32000, bias=True, shift=False), "lm_loss"),
        "XLNetModel": Class(prefix=""),
        "XLNetForSequenceClassification": Class(ClassifyHead(num_labels=2, pool=POOL), "logits_proj"),
        "XLNetForTokenClassification": Class(TagHead(num_labels=2, dropout=0.0), "classifier"),
        "XLNetForMultipleChoice": Class(MultipleChoiceHead(pool=POOL), "logits_proj"),
        "XLNetForQuestionAnsweringSimple": Class(SpanHead(), "qa_outputs"),
        "XLNetForQuestionAnswering": Class(
            LikelySpans(starts=5, ends=5, norm=NORM),
            weights={
                "start_logits.dense": "head.begin",
                "end_logits.{dense_0,LayerNorm,dense_1}": "head.{end_dense,end_norm,end}",
                "answer_class.{dense_0,dense_1}": "head.{none_dense,none}",
            },
        ),
    },
    config=CONFIG,
    weights=WEIGHTS,
    prefix="transformer.",
    checks=(check,),
    aliases={
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    sizes={"xlnet-base-cased": size(768, 12, 117e6), "xlnet-large-cased": size(1024, 24, 360e6)},
)
