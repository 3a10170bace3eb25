"""What BERT and the families after it share: fields, embedding, post-norm layers, the names of their tensors."""

from __future__ import annotations

from typing import Any

from anyformer.families.base import template
from anyformer.families.base.fields import ConfigField, Field, Removed, tied
from anyformer.families.base.template import Config, equal_heads
from anyformer.families.shared.heads import causal, seen
from anyformer.models import DecoderModel, EncoderModel, Model
from anyformer.parts.activation import activation_named, published_name
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.base import Head, Transform
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pretraining import PretrainingHead
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.parts.position.numbering import ByPlace, Numbering, WithoutToken
from anyformer.runtime.mask import FULL
from anyformer.specs.addresses import value_at
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Copies, Rename, Rule

TOKENS = "embedding.tokens.weight"


def stack_of(spec: Model) -> str:
    return "decoder" if isinstance(spec, DecoderModel) else "encoder"


def inside(path: str) -> Any:
    """Reads a value back from the stack, whichever it is."""
    return lambda spec: value_at(spec, f"{stack_of(spec)}.{path}")


# of the encoder alone; families whose layers can decode add DECODING
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
    "tie_word_embeddings": Field(True, tied(LMHead, PretrainingHead)),
    "problem_type": Field(None, "head.problem"),
    "position_embedding_type": Removed("absolute", "relative positions, which published classes no longer have"),
}
DECODING: dict[str, ConfigField] = {
    "is_decoder": Field(False, lambda spec: stack_of(spec) == "decoder"),
    "add_cross_attention": Field(False, lambda spec: "cross" in getattr(spec, stack_of(spec)).layers.steps),
    "is_causal": causal("decoder.layers.attention.op.mask"),
    "classifier_dropout": Field(None),  # hidden_dropout_prob stands in where it is None
}


def classifier_dropout(c: Config) -> float:
    return c.hidden_dropout_prob if c.classifier_dropout is None else c.classifier_dropout


def embedding(c: Config, kind: type[TextEmbedding] = TextEmbedding, **more: Any) -> TextEmbedding:
    """Tokens, positions and segments, normed; `more` are fields that differ from BERT's."""
    if c.type_vocab_size < 1:
        raise ValueError(f"type_vocab_size {c.type_vocab_size}: every token belongs to a segment")
    usual = {
        "tokens": Tokens(vocab_size=c.vocab_size, padding_index=c.pad_token_id),
        "position": Learned(length=c.max_position_embeddings),
        "segments": c.type_vocab_size,
        "norm": LayerNorm(eps=c.layer_norm_eps),
        "dropout": c.hidden_dropout_prob,
    }
    return kind(**{**usual, **more})


def counted_embedding(c: Config, kind: type[TextEmbedding] = TextEmbedding, **more: Any) -> TextEmbedding:
    """fairseq's way: positions count the tokens that are not padding, from the row after the padding token's."""
    return embedding(c, kind, position=counted_position(c), numbering=counted_numbering(c), **more)


def counted_position(c: Any) -> Learned:
    pad = c.pad_token_id
    if pad is None:
        raise ValueError("pad_token_id is None; positions are counted from it")
    length = c.max_position_embeddings - pad - 1
    if length < 1:
        raise ValueError(f"max_position_embeddings {c.max_position_embeddings} leaves none after pad_token_id {pad}")
    return Learned(length=length, offset=pad + 1, padding=pad != -1)


def counted_numbering(c: Any) -> Numbering:
    pad = c.pad_token_id
    return ByPlace() if pad == -1 else WithoutToken(token=pad, first=pad + 1)  # -1 is no token: all are counted


COUNTED_LENGTH = Field(512, lambda spec: spec.embedding.position.length + spec.embedding.position.offset)


def block(c: Config, op: Any = None, decodes: bool = False, cross: bool = False, norm: str = "out_norm") -> Block:
    """Attention (or `op` in its place) and feed-forward, each normed after the add, or in another place of a step."""
    equal_heads(c)
    if cross and not decodes:
        raise ValueError("add_cross_attention needs is_decoder: an encoder looks at no memory")

    def step(op: Any) -> Sublayer:
        return Sublayer(op=op, dropout=c.hidden_dropout_prob).replace(**{norm: LayerNorm(eps=c.layer_norm_eps)})

    def attention(**kind: Any) -> Sublayer:
        return step(Attention(num_heads=c.num_attention_heads, dropout=c.attention_probs_dropout_prob, **kind))

    steps = {"attention": attention(mask=seen(c) if decodes else FULL) if op is None else step(op)}
    if cross:
        steps["cross"] = attention(memory=True)
    steps["feedforward"] = step(MLP(width=c.intermediate_size, activation=activation_named(c.hidden_act)))
    return Block(**steps)


def model(c: Config, embedding: TextEmbedding, head: Head | None, stack: Stack | None = None) -> Model:
    """An encoder, or with is_decoder a decoder of the same layers [Rothe et al. 2020]."""
    decodes, cross = getattr(c, "is_decoder", False), getattr(c, "add_cross_attention", False)
    if stack is None:
        stack = Stack(layers=block(c, None, decodes, cross), depth=c.num_hidden_layers)
    out = {LMHead: "head.out.weight", PretrainingHead: "head.lm.out.weight"}
    tied = [path for kind, path in out.items() if isinstance(head, kind) and c.tie_word_embeddings]
    shared: dict[str, Any] = {
        "width": c.hidden_size,
        "embedding": embedding,
        "head": head,
        "ties": tuple((path, TOKENS) for path in tied),
        "init": {"*": Normal(std=c.initializer_range)},
    }
    if not decodes:
        return EncoderModel(encoder=stack, **shared)
    writes = isinstance(head, LMHead) and head.shift
    offered: Any = "always" if head is None or not head.inputs else "without labels" if writes else "never"
    return DecoderModel(decoder=stack, state_offered=offered, **shared)


def lm_head(c: Config, activation: str, width: int | None = None) -> LMHead:
    """Scores through a transform; files hold the bias under two names, which are two tensors where nothing is tied."""
    transform = Transform(activation=activation_named(activation), norm=LayerNorm(eps=c.layer_norm_eps), width=width)
    untied = not c.tie_word_embeddings
    return LMHead(vocab_size=c.vocab_size, bias=True, transform=transform, shift=False, unused_bias=untied)


def renames(modules: dict[str, str]) -> list[Rule]:
    """{published module: ours} for all that they hold."""
    return [Rename(f"{theirs}.{{p}}", f"{ours}.{{p}}") for theirs, ours in modules.items()]


def layer_rules(spec: Model) -> list[Rule]:
    """Embedding, layers and pooler."""
    layer, ours = "~encoder.layer.{i}", f"{stack_of(spec)}.layers.{{i}}"
    attention = {
        "self.query": "op.q",
        "self.key": "op.k",
        "self.value": "op.v",
        "output.dense": "op.o",
        "output.LayerNorm": "out_norm",
    }
    return renames(
        {
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
        }
    )


def lm_rules(spec: Model, theirs: str, dense: str, norm: str) -> list[Rule]:
    """The scores over the vocabulary, where there are any: `theirs` holds decoder, bias, `dense` and `norm`."""
    if not isinstance(spec.head, (LMHead, PretrainingHead)):
        return []
    lm = "head.lm" if isinstance(spec.head, PretrainingHead) else "head"
    # one bias of two names where the embedding is tied; where not they differ, and the decoder's alone is in use
    names = (f"{theirs}.bias", f"{theirs}.decoder.bias")
    return [
        Copies(names if spec.ties else names[::-1], f"{lm}.out.bias"),
        Copies(names, f"{lm}.idle.bias"),
        Rename(f"{theirs}.decoder.weight", f"{lm}.out.weight"),
        *renames({f"{theirs}.{dense}": f"{lm}.transform.dense", f"{theirs}.{norm}": f"{lm}.transform.norm"}),
    ]


# -- as data ----------------------------------------------------------------------------------------------------------

NORM = LayerNorm(eps=1e-12)
LAYERS = Block(
    attention=Sublayer(op=Attention(num_heads=12, dropout=0.1), out_norm=NORM, dropout=0.1),
    feedforward=Sublayer(op=MLP(width=3072, activation="gelu"), out_norm=NORM, dropout=0.1),
)

CONFIG: dict[str, Any] = {
    "vocab_size": "**.vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "*.depth",
    "num_attention_heads": "*.layers.*.op.num_heads",
    "intermediate_size": "*.layers.feedforward.op.width",
    "hidden_act": template.activation("*.layers.feedforward.op.activation", "**.transform.activation"),
    "hidden_dropout_prob": ("embedding.dropout", "*.layers.*.dropout"),
    "attention_probs_dropout_prob": "*.layers.*.op[Attention].dropout",
    "max_position_embeddings": "embedding.position.length",
    "type_vocab_size": "embedding.segments",
    "initializer_range": "init.*.std",
    "layer_norm_eps": "**.eps",
    "pad_token_id": "embedding.tokens.padding_index",
    "tie_word_embeddings": template.tied(True, LMHead="head.out.weight", PretrainingHead="head.lm.out.weight"),
    "position_embedding_type": FIELDS["position_embedding_type"],
}

WEIGHTS: dict[str, Any] = {
    "~embeddings.{word,position,token_type}_embeddings": "embedding.{tokens,position,segments}",
    "~embeddings.LayerNorm": "embedding.norm",
    "~encoder.layer.{i}.attention.self.{query,key,value}": "*.layers.{i}.attention.op.{q,k,v}",
    "~encoder.layer.{i}.attention.output.dense": "*.layers.{i}.attention.op.o",
    "~encoder.layer.{i}.attention.output.LayerNorm": "*.layers.{i}.attention.out_norm",
    "~encoder.layer.{i}.crossattention.self.{query,key,value}": "*.layers.{i}.cross.op.{q,k,v}",
    "~encoder.layer.{i}.crossattention.output.dense": "*.layers.{i}.cross.op.o",
    "~encoder.layer.{i}.crossattention.output.LayerNorm": "*.layers.{i}.cross.out_norm",
    "~encoder.layer.{i}.intermediate.dense": "*.layers.{i}.feedforward.op.up",
    "~encoder.layer.{i}.output.dense": "*.layers.{i}.feedforward.op.down",
    "~encoder.layer.{i}.output.LayerNorm": "*.layers.{i}.feedforward.out_norm",
    "~pooler.dense": "head.pool.dense",
}

# fairseq's positions (RoBERTa, Longformer): these fields, and what stands in the embedding (`computed`)
COUNTED_CONFIG: dict[str, ConfigField] = {
    "max_position_embeddings": template.Entry(path=COUNTED_LENGTH.path),
    "pad_token_id": template.entry("embedding.tokens.padding_index"),
}
COUNTED = {"embedding.position": counted_position, "embedding.numbering": counted_numbering}


def decode(spec: Model, is_decoder: bool, c: Config) -> Model:
    """With is_decoder the same layers read from left to right, and may look at a memory [Rothe et al. 2020]."""
    if not is_decoder:
        return spec
    stack: Stack = value_at(spec, "encoder")
    steps = dict(stack.layers.items())
    attention = steps.pop("attention")
    cross = {"cross": attention.replace(op=attention.op.replace(memory=True))} if c.add_cross_attention else {}
    attention = attention.replace(op=attention.op.replace(mask=seen(c)))
    head, layers = spec.head, Block(attention=attention, **cross, **steps)
    writes = isinstance(head, LMHead) and head.shift
    return DecoderModel(
        decoder=stack.replace(layers=layers),
        state_offered="always" if head is None or not head.inputs else "without labels" if writes else "never",
        **{name: value for name, value in spec.items() if name not in ("encoder", "state_offered")},
    )


def head_dropout(*addresses: str) -> template.Entry:
    """`classifier_dropout`: where it is None, hidden_dropout_prob stands there."""
    return template.helper(addresses=addresses, read=lambda value, c: c.hidden_dropout_prob if value is None else value)


OF_DECODERS: dict[str, ConfigField] = {
    "is_decoder": template.Entry(False, lambda spec: stack_of(spec) == "decoder", build=decode),
    "add_cross_attention": DECODING["add_cross_attention"],
    "is_causal": DECODING["is_causal"],
    "classifier_dropout": head_dropout(
        "head[ClassifyHead].pool.dropout", "head[MultipleChoiceHead].pool.dropout", "head[TagHead].dropout"
    ),
}


def check_shape(c: Config) -> None:
    equal_heads(c)
    if c.type_vocab_size < 1:
        raise ValueError(f"type_vocab_size {c.type_vocab_size}: every token belongs to a segment")


def check(c: Config) -> None:
    check_shape(c)
    if c.architecture.endswith("ForQuestionAnswering") and c.num_labels != 2:
        raise ValueError(f"num_labels is {c.num_labels}; an answer has two ends, a start and an end")


def check_decoder(c: Config) -> None:
    check(c)
    if isinstance(c.classifier_dropout, bool):  # also where no head reads it
        raise ValueError(f"classifier_dropout={c.classifier_dropout} is not a number")
    if c.add_cross_attention and not c.is_decoder:
        raise ValueError("add_cross_attention needs is_decoder: an encoder looks at no memory")


def vocabulary(dense: str, norm: str) -> Any:
    """The weights of the scores over the vocabulary: a bias of two names, `dense` and `norm`."""
    return lambda theirs, spec: lm_rules(spec, theirs, dense, norm)
