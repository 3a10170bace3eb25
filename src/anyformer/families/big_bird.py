"""BigBird [Zaheer et al. 2020]: BERT for long texts; each block of tokens attends to its neighbours, to the first and
last block and to random blocks. Short texts and decoders use full attention."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Fixed, Ignored
from anyformer.families.base.template import Class, Config, Entry, activation, choice, divides, entry
from anyformer.families.bert import DROPPED, LARGE, POOL
from anyformer.families.shared import bert_like
from anyformer.families.shared.bert_like import LAYERS, NORM, stack_name
from anyformer.parts import (
    Attention, BlockSparseAttention, BlockTextEmbedding, ClassifyHead, EncoderModel, LMHead, Learned, MLP, Model,
    MultipleChoiceHead, Normal, PooledOutput, PretrainingHead, QuestionHead, Stack, TagHead, TextEmbedding, TextOnly,
    Tokens, Transform, Unused,
)  # fmt: skip
from anyformer.specs.addresses import edit, value_at
from anyformer.specs.messages import quote

ATTENTION = "*.layers.attention.op"

TEMPLATE = EncoderModel(
    width=768,
    embedding=BlockTextEmbedding(
        block_size=64,
        random_blocks=3,
        tokens=Tokens(vocab_size=50358, padding_index=0),
        position=Learned(length=4096),
        segments=2,
        norm=NORM,
        dropout=0.1,
        order=("segments", "position", "dropout", "norm", "project"),
    ),
    encoder=Stack(
        depth=12,
        layers=edit(
            LAYERS,
            {
                "attention.op": BlockSparseAttention(
                    num_heads=12, block_size=64, random_blocks=3, length=4096, dropout=0.1
                ),
                "feedforward.op.activation": "gelu_tanh",
            },
        ),
        neck=TextOnly(),
    ),
    init={"*": Normal(std=0.02)},
)
LM = LMHead(vocab_size=50358, bias=True, transform=Transform(activation="gelu_tanh", norm=NORM), shift=False)


def without_blocks(embedding: BlockTextEmbedding | TextEmbedding) -> TextEmbedding:
    blocks = BlockTextEmbedding.__annotations__
    return TextEmbedding(**{name: value for name, value in embedding.items() if name not in blocks})


def sparse_field(name: str) -> Entry:
    """An entry that is read only if attention is sparse."""
    default = getattr(TEMPLATE.embedding, name)
    return entry(
        f"{ATTENTION}.{name}",
        f"embedding.{name}",
        read=lambda value, c: default if c.attention_type == "original_full" else value,
    )


def attend_to_all(spec: EncoderModel, kind: str, c: Config) -> EncoderModel:
    if kind not in ("original_full", "block_sparse"):
        raise ValueError(f"attention_type={quote(kind)} is not valid; valid: original_full, block_sparse")
    if kind == "block_sparse":
        return spec
    op = value_at(spec, "encoder.layers.attention.op")
    full = Attention(num_heads=op.num_heads, bias=op.bias, dropout=op.dropout)
    return edit(spec, {"encoder.layers.attention.op": full, "embedding": without_blocks(value_at(spec, "embedding"))})


def attention_type(spec: Model) -> str:
    op = value_at(spec, f"{stack_name(spec)}.layers.attention.op")
    return "block_sparse" if isinstance(op, BlockSparseAttention) else "original_full"


def build_decoder(spec: EncoderModel, is_decoder: bool, c: Config) -> Model:
    """Unlike BERT's, the decoder returns its cache with labels too."""
    if not is_decoder:
        return spec
    model = bert_like.build_decoder(spec, is_decoder, c).replace(embedding=without_blocks(value_at(spec, "embedding")))
    return model.replace(state_offered="always") if model.state_offered == "without labels" else model


def check(c: Config) -> None:
    if c.type_vocab_size < 1:
        raise ValueError(f"type_vocab_size must be at least 1, got {c.type_vocab_size}")
    if isinstance(c.classifier_dropout, bool):  # checked even if no head reads it
        raise ValueError(f"classifier_dropout={c.classifier_dropout} is not a number")


# most classes contain a pooler that they do not use
UNUSED: dict[str, Any] = {"encoder.neck.rest": Unused(part=POOL)}
IDLE_WEIGHTS = {"~pooler": "*.neck.rest.part.dense"}

BIG_BIRD = Family(
    name="big_bird",
    about="encoders for long texts, and decoders with the same layers",
    tokenizer="BigBirdTokenizer",
    template=TEMPLATE,
    classes={
        "BigBirdForPreTraining": Class(PretrainingHead(lm=LM, pool=POOL, tokens_alone=True), "cls.seq_relationship"),
        "BigBirdForMaskedLM": Class(LM, changes=UNUSED, weights=IDLE_WEIGHTS),
        "BigBirdForCausalLM": Class(LM.replace(shift=True), changes=UNUSED, weights=IDLE_WEIGHTS),
        "BigBirdModel": Class(PooledOutput(pool=POOL), prefix=""),
        "BigBirdForSequenceClassification": Class(
            ClassifyHead(num_labels=2, pool=DROPPED.replace(activation="gelu_tanh", input_dropout=0.1)),
            "classifier.out_proj",
            changes=UNUSED,
            weights={**IDLE_WEIGHTS, "classifier.dense": "head.pool.dense"},
        ),
        "BigBirdForTokenClassification": Class(
            TagHead(num_labels=2, dropout=0.1), "classifier", changes=UNUSED, weights=IDLE_WEIGHTS
        ),
        "BigBirdForQuestionAnswering": Class(  # ignores num_labels: always start and end
            QuestionHead(separator=66, feedforward=MLP(width=3072, activation="gelu_tanh"), norm=NORM, dropout=0.1),
            "qa_classifier.qa_outputs",
            weights={
                "qa_classifier.{intermediate,output}.dense": "head.feedforward.{up,down}",
                "qa_classifier.output.LayerNorm": "head.norm",
            },
        ),
        "BigBirdForMultipleChoice": Class(MultipleChoiceHead(pool=DROPPED), "classifier"),
    },
    config={
        **bert_like.CONFIG,
        "intermediate_size": ("*.layers.feedforward.op.width", "head.feedforward.width"),
        "hidden_act": activation(
            "*.layers.feedforward.op.activation",
            "**.transform.activation",
            "head.feedforward.activation",
            "head[ClassifyHead].pool.activation",
        ),
        "hidden_dropout_prob": (
            "embedding.dropout",
            "*.layers.*.dropout",
            "head[QuestionHead].dropout",
            "head[MultipleChoiceHead].pool.dropout",
        ),
        "attention_probs_dropout_prob": f"{ATTENTION}.dropout",
        "max_position_embeddings": ("embedding.position.length", f"{ATTENTION}.length"),
        "block_size": sparse_field("block_size"),
        "num_random_blocks": sparse_field("random_blocks"),
        "use_bias": choice(f"{ATTENTION}.bias", {True: "qkvo", False: "o"}),
        "rescale_embeddings": entry(
            "embedding.scale",
            read=lambda value, c: c.hidden_size**0.5 if value else None,
            write=lambda scale: scale is not None,
        ),
        "sep_token_id": "head.separator",
        "attention_type": Entry("block_sparse", attention_type, build=attend_to_all),
        **bert_like.DECODER_FIELDS,
        "is_decoder": Entry(False, lambda spec: stack_name(spec) == "decoder", build=build_decoder),
        "add_cross_attention": Fixed(False, "the published self-attention would read the encoder's states too"),
        "classifier_dropout": bert_like.head_dropout(
            "head[ClassifyHead].pool.dropout", "head[ClassifyHead].pool.input_dropout", "head[TagHead].dropout"
        ),
        "bos_token_id": Ignored(1, "used by tokenizers and generation"),
        "eos_token_id": Ignored(2, "used by tokenizers and generation"),
    },
    computed={"**.unused_bias": lambda c: not c.tie_word_embeddings},
    weights={
        **bert_like.WEIGHTS,
        "~pooler.dense": None,
        "~pooler": "head.pool.dense",
        "cls.predictions": bert_like.vocabulary("transform.dense", "transform.LayerNorm"),
    },
    prefix="bert.",
    checks=(divides("num_attention_heads", "hidden_size"), check),
    dropped=("~embeddings.position_ids", "~embeddings.token_type_ids", "~pooler.{p}", "cls.seq_relationship.{p}"),
    sizes={"bigbird-roberta-base": Size({}, 127e6), "bigbird-roberta-large": Size(LARGE)},
)
