"""BERT [Devlin et al. 2019]: post-norm encoder, learned positions and segments, masked tokens and next sentence; with
`is_decoder` the same layers read from left to right and may look at a memory [Rothe et al. 2020]."""

from __future__ import annotations

from typing import Any

from anyformer.block import Block, Stack, Sublayer
from anyformer.families.family import ConfigField, Family, Field, Inert, Only, Size, tied
from anyformer.model import DecoderModel, EncoderModel, Model
from anyformer.parts import head as heads
from anyformer.parts.activation import activation_named, published_name
from anyformer.parts.attention import Attention
from anyformer.parts.embed import TextEmbedding, Tokens
from anyformer.parts.feedforward import MLP
from anyformer.parts.init import Normal
from anyformer.parts.mask import CAUSAL, FULL
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position import Learned
from anyformer.spec import at
from anyformer.weights.rules import Copies, Rename, Rule

LANGUAGE = ("BertForPreTraining", "BertForMaskedLM", "BertLMHeadModel")  # the classes that score the vocabulary
OUT = {"BertForPreTraining": "cls.seq_relationship", "BertForNextSentencePrediction": "cls.seq_relationship",
       "BertForQuestionAnswering": "qa_outputs"}  # fmt: skip
ORIGINAL = "of the first published files; no class reads it"
UNREAD = Inert(None, ORIGINAL)


def stack_of(spec: Any) -> str:
    return "decoder" if isinstance(spec, DecoderModel) else "encoder"


def inside(path: str) -> Any:
    """Reads a value back from the stack, whichever it is."""
    return lambda spec: at(spec, f"{stack_of(spec)}.{path}")


FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(30522, "embedding.tokens.vocab_size"),
    "hidden_size": Field(768, "width"),
    "num_hidden_layers": Field(12, inside("depth")),
    "num_attention_heads": Field(12, inside("layers.attention.op.num_heads")),
    "intermediate_size": Field(3072, inside("layers.feedforward.op.width")),
    "hidden_act": Field("gelu", lambda spec: published_name(inside("layers.feedforward.op.activation")(spec))),
    "hidden_dropout_prob": Field(0.1, "embedding.dropout"),
    "attention_probs_dropout_prob": Field(0.1, inside("layers.attention.op.dropout")),
    "max_position_embeddings": Field(512, "embedding.position.length"),
    "type_vocab_size": Field(2, "embedding.segments"),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "layer_norm_eps": Field(1e-12, "embedding.norm.eps"),
    "pad_token_id": Field(0, "embedding.tokens.padding_index"),
    "classifier_dropout": Field(None),
    "is_decoder": Field(False, lambda spec: stack_of(spec) == "decoder"),
    "add_cross_attention": Field(False, lambda spec: "cross" in getattr(spec, stack_of(spec)).layers.steps),
    "tie_word_embeddings": Field(True, tied(heads.LMHead, heads.PretrainingHead)),
    "problem_type": Field(None, "head.problem"),
    "position_embedding_type": Only("absolute", "relative positions, which published classes no longer have"),
    "directionality": Only("bidi", ORIGINAL),
    "pooler_type": Only("first_token_transform", ORIGINAL),
    **{f"pooler_{name}": UNREAD for name in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head")},
    "output_past": Inert(True, "an old name of use_cache that nothing reads"),
}


def describe(c: Any) -> Model:
    if c.hidden_size % c.num_attention_heads:
        raise ValueError(f"hidden_size {c.hidden_size} is not a multiple of {c.num_attention_heads} attention heads")
    if c.add_cross_attention and not c.is_decoder:
        raise ValueError("add_cross_attention needs is_decoder: an encoder looks at no memory")
    if c.type_vocab_size < 1:
        raise ValueError(f"type_vocab_size {c.type_vocab_size}: every token belongs to a segment")
    norm = LayerNorm(eps=c.layer_norm_eps)

    def step(op: Any) -> Sublayer:
        return Sublayer(op=op, out_norm=norm, dropout=c.hidden_dropout_prob)

    def attention(**kind: Any) -> Sublayer:
        return step(Attention(num_heads=c.num_attention_heads, dropout=c.attention_probs_dropout_prob, **kind))

    steps = {"attention": attention(mask=CAUSAL if c.is_decoder else FULL)}
    if c.add_cross_attention:
        steps["cross"] = attention(memory=True)
    steps["feedforward"] = step(MLP(width=c.intermediate_size, activation=activation_named(c.hidden_act)))
    stack = Stack(layers=Block(**steps), depth=c.num_hidden_layers)
    out = "head.lm.out.weight" if c.architecture == "BertForPreTraining" else "head.out.weight"
    shared: dict[str, Any] = {
        "width": c.hidden_size,
        "embedding": TextEmbedding(
            tokens=Tokens(vocab_size=c.vocab_size, padding_index=c.pad_token_id),
            position=Learned(length=c.max_position_embeddings), segments=c.type_vocab_size, norm=norm,
            dropout=c.hidden_dropout_prob,
        ),
        "head": head(c, norm),
        "ties": ((out, "embedding.tokens.weight"),) if c.architecture in LANGUAGE and c.tie_word_embeddings else (),
        "init": {"*": Normal(std=c.initializer_range)},
    }  # fmt: skip
    return DecoderModel(decoder=stack, **shared) if c.is_decoder else EncoderModel(encoder=stack, **shared)


def head(c: Any, norm: LayerNorm) -> heads.Head:
    pool = heads.Pool(take="first", dense=True, activation="tanh")
    dropout = c.hidden_dropout_prob if c.classifier_dropout is None else c.classifier_dropout
    dropped = pool.replace(dropout=dropout)
    transform = heads.Transform(activation=activation_named(c.hidden_act), norm=norm)
    untied = not c.tie_word_embeddings
    lm = heads.LMHead(vocab_size=c.vocab_size, bias=True, transform=transform, shift=False, idle_bias=untied)
    match c.architecture:
        case "BertForPreTraining":
            return heads.PretrainingHead(lm=lm, pool=pool)
        case "BertForMaskedLM":
            return lm
        case "BertLMHeadModel":
            return lm.replace(shift=True)
        case "BertForNextSentencePrediction":
            return heads.NextSentenceHead(pool=pool)
        case "BertForSequenceClassification":
            return heads.ClassifyHead(num_labels=c.num_labels, pool=dropped, problem=c.problem_type)
        case "BertForMultipleChoice":
            return heads.MultipleChoiceHead(pool=dropped)
        case "BertForTokenClassification":
            return heads.TagHead(num_labels=c.num_labels, dropout=dropout)
        case "BertForQuestionAnswering":
            if c.num_labels != 2:
                raise ValueError(f"num_labels is {c.num_labels}; an answer has two ends, a start and an end")
            return heads.SpanHead()
    return heads.PooledOutput(pool=pool)


def rules(spec: Model) -> list[Rule]:
    layer, ours = "~encoder.layer.{i}", f"{stack_of(spec)}.layers.{{i}}"
    lm = "head.lm" if spec.architecture == "BertForPreTraining" else "head"
    attention = {"self.query": "op.q", "self.key": "op.k", "self.value": "op.v", "output.dense": "op.o",
                 "output.LayerNorm": "out_norm"}  # fmt: skip
    modules = {
        "~embeddings.word_embeddings": "embedding.tokens",
        "~embeddings.position_embeddings": "embedding.position",
        "~embeddings.token_type_embeddings": "embedding.segments",
        "~embeddings.LayerNorm": "embedding.norm",
        **{f"{layer}.attention.{theirs}": f"{ours}.attention.{name}" for theirs, name in attention.items()},
        **{f"{layer}.crossattention.{theirs}": f"{ours}.cross.{name}" for theirs, name in attention.items()},
        f"{layer}.intermediate.dense": f"{ours}.feedforward.op.up",
        f"{layer}.output.dense": f"{ours}.feedforward.op.down",
        f"{layer}.output.LayerNorm": f"{ours}.feedforward.out_norm",
        "~pooler.dense": "head.pool.dense",
        "cls.predictions.transform.dense": f"{lm}.transform.dense",
        "cls.predictions.transform.LayerNorm": f"{lm}.transform.norm",
        OUT.get(spec.architecture, "classifier"): "head.out",
    }
    rules: list[Rule] = [Rename(f"{theirs}.{{p}}", f"{name}.{{p}}") for theirs, name in modules.items()]
    if spec.architecture in LANGUAGE:
        # one bias of two names where the embedding is tied; where not they differ, and the decoder's alone is in use
        names = ("cls.predictions.bias", "cls.predictions.decoder.bias")
        biases = [Copies(names if spec.ties else names[::-1], f"{lm}.out.bias"), Copies(names, f"{lm}.idle.bias")]
        rules = [*biases, Rename("cls.predictions.decoder.weight", f"{lm}.out.weight"), *rules]
    return rules


LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}

FAMILIES = (
    Family(
        name="bert",
        about="encoders for text, and decoders made of them",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            *LANGUAGE, "BertModel", "BertForNextSentencePrediction", "BertForSequenceClassification",
            "BertForTokenClassification", "BertForQuestionAnswering", "BertForMultipleChoice",
        ),
        base=("BertModel",),
        prefix="bert.",
        # pretraining leaves a pooler and a next-sentence head behind that most classes have no use for
        dropped=("~embeddings.position_ids", "~pooler.dense.{p}", "cls.seq_relationship.{p}"),
        legacy={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
        sizes={"bert-base": Size({}, 110e6), "bert-large": Size(LARGE, 340e6)},
    ),
)  # fmt: skip
