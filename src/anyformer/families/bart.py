"""BART [Lewis et al. 2020]: the original Transformer trained as a denoising autoencoder, with learned positions and a
norm after the embedding."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored, Removed
from anyformer.families.base.template import Class, Config, Entry, divides, entry, parameter
from anyformer.families.shared import transformer
from anyformer.families.shared.transformer import ALIASES, TOKENS, check_padding, weights
from anyformer.parts import (
    Attention, Block, Causal, ClassifyHead, DecoderModel, EncoderDecoderModel, LMHead, LastOccurrence, LayerNorm,
    Learned, MLP, Model, Normal, OffsetLMHead, Pool, SpanHead, SpareTableTokens, Stack, Sublayer, TextEmbedding, Tokens,
)  # fmt: skip
from anyformer.specs.addresses import edit, value_at
from anyformer.weights.rules import Copies, Rename, Rule

NORM, INIT = LayerNorm(eps=1e-5), {"*": Normal(std=0.02)}

EMBEDDING = TextEmbedding(
    tokens=Tokens(vocab_size=50265, padding_index=1), position=Learned(length=1024, offset=2), norm=NORM, dropout=0.1
)
ENCODER = Stack(
    depth=12,
    layers=Block(
        attention=Sublayer(op=Attention(num_heads=16), dropout=0.1, out_norm=NORM),
        feedforward=Sublayer(op=MLP(width=4096, activation="gelu"), dropout=0.1, out_norm=NORM),
    ),
)
DECODER = Stack(
    depth=12,
    layers=Block(
        attention=Sublayer(op=Attention(num_heads=16, mask=Causal()), dropout=0.1, out_norm=NORM),
        cross=Sublayer(op=Attention(num_heads=16, memory=True), dropout=0.1, out_norm=NORM),
        feedforward=Sublayer(op=MLP(width=4096, activation="gelu"), dropout=0.1, out_norm=NORM),
    ),
)
TEMPLATE = EncoderDecoderModel(
    width=1024,
    embedding=EMBEDDING,
    encoder=ENCODER,
    decoder_embedding=EMBEDDING,
    decoder=DECODER,
    start_token=2,
    padding_token=1,
    state_offered="without labels",
    reads_source=True,
    init=INIT,
)
ONLY_DECODER = DecoderModel(width=1024, embedding=EMBEDDING, decoder=DECODER, init=INIT)


def share_tables(spec: Model, tie: bool, c: Config) -> Model:
    """Share one table for source, target and output. If not tied, files contain that table but nothing reads it."""
    shared = spec.pair and vars(c).get("share_encoder_decoder_embeddings", True)
    if not tie:
        tokens = value_at(spec, "embedding.tokens").as_kind(SpareTableTokens)
        return edit(spec, {"embedding.tokens": tokens}) if shared else spec
    ties = [(f"decoder_{TOKENS}", TOKENS)] if shared else []
    if isinstance(spec.head, LMHead):
        ties.append(("head.out.weight", TOKENS if shared or not spec.pair else f"decoder_{TOKENS}"))
    return spec.replace(ties=tuple(ties))


def root_scale(c: Config) -> float | None:
    """Return the factor on token vectors: sqrt(width) or None."""
    return c.d_model**0.5 if c.scale_embedding else None


def scale_at(*addresses: str) -> Entry:
    return entry(*addresses, read=lambda value, c: root_scale(c), write=lambda scale: scale is not None)


OLD = "an option of old configs that the published class no longer has"
SHARED_WITH_MARIAN: dict[str, Any] = {
    "is_decoder": Ignored(False, "follows from the class"),
    "normalize_before": Removed(False, OLD),
    "add_final_layer_norm": Removed(False, OLD),
    "add_bias_logits": Removed(False, OLD),
}
ONLY_BART: dict[str, Any] = {
    "classifier_dropout": ("head.pool.dropout", "head.pool.input_dropout"),
    "eos_token_id": "head.pool.take.token",
    "problem_type": entry("head.problem", default=None),
    "num_labels": Ignored(3, "read with id2label"),
    "force_bos_token_to_be_generated": Ignored(False, "used by generation"),
    "output_past": Ignored(True, "an old name of use_cache that nothing reads"),
    "classif_dropout": Ignored(0.0, "an old name of classifier_dropout that nothing reads"),
    **dict.fromkeys(
        ("replacing_rate", "student_encoder_layers", "student_decoder_layers", "save_step"),
        Ignored(None, "how a distilled copy was trained"),
    ),
    "normalize_embedding": Removed(True, OLD),
    "static_position_embeddings": Removed(False, OLD),
    "extra_pos_embeddings": Removed(2, OLD),
}
CONFIG: dict[str, Any] = {
    "vocab_size": ("*.tokens.vocab_size", "head.vocab_size"),
    **transformer.CONFIG,
    "max_position_embeddings": "*.position.length",
    "scale_embedding": scale_at("*.tokens.scale"),
    "tie_word_embeddings": Entry(True, lambda spec: bool(spec.ties), build=share_tables),
    "pad_token_id": ("*.tokens.padding_index", "padding_token"),
    "decoder_start_token_id": "start_token",
    "bos_token_id": Ignored(0, "used by generation"),
    **SHARED_WITH_MARIAN,
    **ONLY_BART,
}


def shared_table(theirs: str, spec: Model) -> list[Rule]:
    if any(owner == TOKENS for _, owner in spec.ties):
        return [Copies([f"{theirs}.weight", "~encoder.embed_tokens.weight"], TOKENS)] if spec.pair else []
    return [Rename(f"{theirs}.weight", "embedding.tokens.spare")]


WEIGHTS: dict[str, Any] = {
    "~shared": shared_table,
    **weights("out_norm"),
    "~{encoder,decoder}.layernorm_embedding": "{embedding,decoder_embedding}.norm",
}
LOGITS_BIAS = {"final_logits_bias": parameter("head.offset", (1, -1))}


def equal_heads(c: Config) -> None:
    for side in ("decoder",) if c.architecture.endswith("ForCausalLM") else ("encoder", "decoder"):
        divides(f"{side}_attention_heads", "d_model")(c)


BASE = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 6), ("ffn_dim", 3072), ("attention_heads", 12))
}
# MASS: the same shape with uncased BERT's vocabulary, trained to predict a masked fragment [Song et al. 2019]
MASS = {
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "scale_embedding": True,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 101,
    "eos_token_id": 102,
    "decoder_start_token_id": 102,
}

BART = Family(
    name="bart",
    about="denoising encoder-decoders for summaries and other rewriting",
    tokenizer="BartTokenizer",
    template=TEMPLATE,
    classes={
        "BartForConditionalGeneration": Class(
            OffsetLMHead(vocab_size=50265, shift=False), "lm_head", weights=LOGITS_BIAS
        ),
        "BartModel": Class(prefix=""),
        "BartForSequenceClassification": Class(  # reads the vector at the end-of-sequence token
            ClassifyHead(num_labels=3, pool=Pool(take=LastOccurrence(token=2), dense=True, activation="tanh")),
            "classification_head.out_proj",
            weights={"classification_head.dense": "head.pool.dense"},
        ),
        "BartForQuestionAnswering": Class(SpanHead(), "qa_outputs"),
        "BartForCausalLM": Class(  # published: the caller shifts the labels
            LMHead(vocab_size=50265, shift=False),
            "lm_head",
            template=ONLY_DECODER,
            weights={"~decoder.{embed_tokens,embed_positions,layernorm_embedding}": "embedding.{tokens,position,norm}"},
        ),
    },
    config=CONFIG,
    weights=WEIGHTS,
    prefix="model.",
    checks=(equal_heads, lambda c: check_padding(c, c.vocab_size)),
    aliases=ALIASES,
    dropped=("~encoder.version", "~decoder.version"),
    sizes={
        "bart-base": Size({**BASE, "d_model": 768}, 139e6),
        "bart-large": Size({}, 406e6),
        "mass-base": Size({**BASE, **MASS, "d_model": 768}, 123e6, "objective MASS; uncased, for summaries"),
        "mass-middle": Size(
            {**MASS, "encoder_layers": 6, "decoder_layers": 6}, 208e6, "objective MASS; uncased, for summaries"
        ),
    },
)
