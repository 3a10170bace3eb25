"""DistilBERT [Sanh et al. 2019]: half of BERT's layers, without segments and pooler, distilled from BERT."""

from __future__ import annotations

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Config, Entry, activation, divides, tied
from anyformer.parts import (
    Attention, Block, ClassifyHead, EncoderModel, FirstToken, IgnoredSegments, LMHead, LayerNorm, Learned, MLP, Model,
    MultipleChoiceHead, Normal, Pool, Sines, SpanHead, Stack, Sublayer, TagHead, TextEmbedding, Tokens, Transform,
)  # fmt: skip

ATTENTION, INNER, POSITIONS = "encoder.layers.attention.op", "encoder.layers.feedforward.op", "*.position.weight"
THEIRS, OURS = "~transformer.layer.{i}", "encoder.layers.{i}"
NORM = LayerNorm(eps=1e-12)

TEMPLATE = EncoderModel(
    width=768,
    embedding=TextEmbedding(
        tokens=Tokens(vocab_size=30522, padding_index=0),
        position=Learned(length=512),
        norm=NORM,
        dropout=0.1,
        segments=IgnoredSegments(),  # BertTokenizer returns token_type_ids, which the published model ignores
    ),
    encoder=Stack(
        depth=6,
        layers=Block(
            attention=Sublayer(op=Attention(num_heads=12, dropout=0.1), out_norm=NORM),
            feedforward=Sublayer(op=MLP(width=3072, activation="gelu"), out_norm=NORM, dropout=0.1),
        ),
    ),
    init={"*": Normal(std=0.02)},
)
POOL = Pool(take=FirstToken(), dense=True, activation="relu", dropout=0.2)


def start_with_sines(spec: Model, value: bool, c: Config) -> Model:
    return spec.replace(init={POSITIONS: Sines(), **dict(spec.init.items())}) if value else spec


def check_num_labels(c: Config) -> None:
    if c.architecture.endswith("ForQuestionAnswering") and c.num_labels != 2:
        raise ValueError(f"num_labels must be 2 for question answering (start and end), got {c.num_labels}")


DISTILBERT = Family(
    name="distilbert",
    about="small text encoders distilled from BERT",
    tokenizer="BertTokenizer",
    template=TEMPLATE,
    classes={
        "DistilBertForMaskedLM": Class(
            LMHead(vocab_size=30522, bias=True, transform=Transform(activation="gelu", norm=NORM), shift=False),
            "vocab_projector",
        ),
        "DistilBertModel": Class(prefix=""),
        "DistilBertForSequenceClassification": Class(ClassifyHead(num_labels=2, pool=POOL), "classifier"),
        "DistilBertForTokenClassification": Class(TagHead(num_labels=2, dropout=0.1), "classifier"),
        "DistilBertForQuestionAnswering": Class(SpanHead(dropout=0.1), "qa_outputs"),
        "DistilBertForMultipleChoice": Class(MultipleChoiceHead(pool=POOL), "classifier"),
    },
    config={
        "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size"),
        "max_position_embeddings": "embedding.position.length",
        "sinusoidal_pos_embds": Entry(False, lambda spec: POSITIONS in spec.init, build=start_with_sines),
        "n_layers": "encoder.depth",
        "n_heads": f"{ATTENTION}.num_heads",
        "dim": "width",
        "hidden_dim": f"{INNER}.width",
        "dropout": ("embedding.dropout", "encoder.layers.feedforward.dropout", "head[TagHead].dropout"),
        "attention_dropout": f"{ATTENTION}.dropout",
        "activation": activation(f"{INNER}.activation", "head.transform.activation"),
        "initializer_range": "init.*.std",
        "qa_dropout": "head[SpanHead].dropout",
        "seq_classif_dropout": "head.pool.dropout",
        "pad_token_id": "embedding.tokens.padding_index",
        "tie_word_embeddings": tied(True, LMHead="head.out.weight"),
        "tie_weights_": Ignored(True, "an old name of tie_word_embeddings that nothing reads"),
        "output_past": Ignored(True, "an old name of use_cache that nothing reads"),
    },
    weights={
        "~embeddings.{word,position}_embeddings": "embedding.{tokens,position}",
        "~embeddings.LayerNorm": "embedding.norm",
        f"{THEIRS}.attention.{{q,k,v,out}}_lin": f"{OURS}.attention.op.{{q,k,v,o}}",
        f"{THEIRS}.sa_layer_norm": f"{OURS}.attention.out_norm",
        f"{THEIRS}.ffn.{{lin1,lin2}}": f"{OURS}.feedforward.op.{{up,down}}",
        f"{THEIRS}.output_layer_norm": f"{OURS}.feedforward.out_norm",
        "vocab_{transform,layer_norm}": "head.transform.{dense,norm}",
        "pre_classifier": "head.pool.dense",
    },
    prefix="distilbert.",
    checks=(divides("n_heads", "dim"), check_num_labels),
    aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    dropped=("~embeddings.position_ids",),
    sizes={"distilbert-base": Size({}, 66e6)},
)
