"""OPT [Zhang et al. 2022]: decoders with ReLU and learned positions that skip padding. The 350M model is post-norm and
has narrower embeddings."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, Ignored, Removed
from anyformer.families.base.template import Class, Config, Entry, activation, equal_heads, tied
from anyformer.families.shared.heads import causal_mask
from anyformer.parts import (
    Attention, Block, Causal, ClassifyHead, DecoderModel, LMHead, LastToken, LayerNorm, Learned, MLP, Model, Normal,
    OutputProjection, Pool, RealTokens, SpanHead, Stack, Sublayer, TextEmbedding, Tokens,
)  # fmt: skip
from anyformer.specs.addresses import edit, value_at

ATTENTION, INNER, LAYER = "decoder.layers.attention.op", "decoder.layers.feedforward.op", "decoder.layers.{i}"
NORM = LayerNorm(eps=1e-5)

TEMPLATE = DecoderModel(
    width=768,
    embedding=TextEmbedding(
        tokens=Tokens(vocab_size=50272, padding_index=1),
        position=Learned(length=2048, offset=2),
        numbering=RealTokens(),
        order=("project", "segments", "position", "norm", "dropout"),
        project_bias=False,
    ),
    decoder=Stack(
        depth=12,
        layers=Block(
            attention=Sublayer(pre_norm=NORM, op=Attention(num_heads=12, bias="qkvo", mask=Causal()), dropout=0.1),
            feedforward=Sublayer(pre_norm=NORM, op=MLP(width=3072, activation="relu"), dropout=0.1),
        ),
        norm=NORM,
    ),
    init={"*": Normal(std=0.02)},
)


def project_output(spec: Model, width: int | None, c: Config) -> Model:
    return spec if width in (None, c.hidden_size) else edit(spec, {"decoder.neck": OutputProjection(width=width)})


def place_norms(spec: Model, before: bool, c: Config) -> Model:
    """Place norms before each step and after the stack, or (post-norm) only after each residual add."""
    if not before:
        spec = edit(
            spec, {"decoder.layers.*.out_norm": value_at(spec, "decoder.norm"), "decoder.layers.*.pre_norm": None}
        )
    return spec if before and not c._remove_final_layer_norm else edit(spec, {"decoder.norm": None})


def is_pre_norm(spec: Model) -> bool:
    return value_at(spec, "decoder.layers.attention.pre_norm") is not None


def has_no_last_norm(spec: Model) -> bool:
    if not is_pre_norm(spec):
        raise Absent
    return value_at(spec, "decoder.norm") is None


CONFIG: dict[str, Any] = {
    "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size"),
    "hidden_size": "width",
    "num_hidden_layers": "decoder.depth",
    "ffn_dim": f"{INNER}.width",
    "max_position_embeddings": "embedding.position.length",
    "do_layer_norm_before": Entry(True, is_pre_norm, build=place_norms),
    "_remove_final_layer_norm": Entry(False, has_no_last_norm),
    "word_embed_proj_dim": Entry(
        None,
        lambda spec: value_at(spec, "embedding.tokens.width") or spec.width,
        addresses=("embedding.tokens.width",),
        read=lambda value, c: None if value == c.hidden_size else value,
        build=project_output,
    ),
    "dropout": "decoder.layers.*.dropout",
    "attention_dropout": f"{ATTENTION}.dropout",
    "num_attention_heads": f"{ATTENTION}.num_heads",
    "activation_function": activation(f"{INNER}.activation"),
    "layerdrop": "decoder.layer_drop",
    "init_std": "init.*.std",
    "enable_bias": f"{INNER}.bias",
    "layer_norm_elementwise_affine": (
        "decoder.layers.*.pre_norm.affine",
        "decoder.layers.*.out_norm.affine",
        "decoder.norm.affine",
    ),
    "tie_word_embeddings": tied(True, LMHead="head.out.weight"),
    "pad_token_id": ("embedding.tokens.padding_index", "head.pool.take.padding_token"),
    "is_causal": causal_mask(f"{ATTENTION}.mask"),
    "bos_token_id": Ignored(2, "used by generation"),
    "eos_token_id": Ignored(2, "used by generation"),
    "activation_dropout": Removed(0.0, "a field of old configs that the published class does not read"),
}


def weights(spec: Model) -> dict[str, str]:
    norm = "pre_norm" if is_pre_norm(spec) else "out_norm"
    return {
        "~decoder.embed_tokens": "embedding.tokens",
        "~decoder.embed_positions": "embedding.position",
        "~decoder.project_in": "embedding.project",
        "~decoder.layers.{i}.self_attn_layer_norm": f"{LAYER}.attention.{norm}",
        "~decoder.layers.{i}.self_attn.{q_proj,k_proj,v_proj,out_proj}": f"{LAYER}.attention.op.{{q,k,v,o}}",
        "~decoder.layers.{i}.final_layer_norm": f"{LAYER}.feedforward.{norm}",
        "~decoder.layers.{i}.{fc1,fc2}": f"{LAYER}.feedforward.op.{{up,down}}",
        "~decoder.final_layer_norm": "decoder.norm",
        "~decoder.project_out": "decoder.neck.project",
    }


def size(depth: int, heads: int, width: int, published: float | None, note: str = "", **more: Any) -> Size:
    config = {"num_hidden_layers": depth, "num_attention_heads": heads, "hidden_size": width, "ffn_dim": 4 * width}
    return Size({**config, **more}, published, note)


OPT = Family(
    name="opt",
    about="decoder language models",
    tokenizer="GPT2Tokenizer",
    template=TEMPLATE,
    classes={
        "OPTForCausalLM": Class(LMHead(vocab_size=50272), "lm_head"),
        "OPTModel": Class(prefix=""),
        "OPTForSequenceClassification": Class(
            ClassifyHead(num_labels=2, pool=Pool(take=LastToken(padding_token=1)), bias=False), "score"
        ),
        "OPTForQuestionAnswering": Class(SpanHead(), "qa_outputs"),
    },
    config=CONFIG,
    computed={f"{ATTENTION}.bias": lambda c: "qkvo" if c.enable_bias else ""},
    weights=weights,
    prefix="model.",
    checks=(equal_heads,),
    dropped=("~decoder.version",),
    sizes={
        "opt-125m": size(12, 12, 768, 125e6),
        "opt-350m": size(
            24,
            16,
            1024,
            None,
            "named 350M; the released weights have 331M",
            word_embed_proj_dim=512,
            do_layer_norm_before=False,
        ),
        "opt-1.3b": size(24, 32, 2048, 1.3e9),
        "opt-2.7b": size(32, 32, 2560, 2.7e9),
        "opt-6.7b": size(32, 32, 4096, 6.7e9),
        "opt-13b": size(40, 40, 5120, 13e9),
        "opt-30b": size(48, 56, 7168, 30e9),
        "opt-66b": size(64, 72, 9216, 66e9),
        "opt-175b": size(96, 96, 12288, 175e9),
    },
)
