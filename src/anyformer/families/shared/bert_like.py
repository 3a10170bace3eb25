"""Config fields, post-norm layers and tensor names that BERT and its successors share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.families.base import template
from anyformer.families.base.fields import ConfigField, Entry, Removed
from anyformer.families.base.template import Config, equal_heads
from anyformer.families.shared.heads import causal, read_mask
from anyformer.parts import (
    Attention, Block, ByPlace, DecoderModel, LMHead, LayerNorm, Learned, MLP, Model, Numbering, PretrainingHead, Stack,
    Sublayer, WithoutToken,
)  # fmt: skip
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Copies, Rename, Rule

TOKENS = "embedding.tokens.weight"
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
    "position_embedding_type": Removed("absolute", "relative positions, which published classes no longer have"),
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


def counted_position(c: Config) -> Learned:
    """fairseq's positions (RoBERTa, Longformer): padding is not counted, and the first is pad_token_id + 1."""
    pad = c.pad_token_id
    if pad is None:
        raise ValueError("pad_token_id is None, but positions start after it; set pad_token_id")
    length = c.max_position_embeddings - pad - 1
    if length % 1:
        raise ValueError(f"max_position_embeddings {c.max_position_embeddings} and pad_token_id {pad} must be integers")
    if length < 1:
        raise ValueError(f"max_position_embeddings {c.max_position_embeddings} must be above pad_token_id {pad} + 1")
    return Learned(length=length, offset=pad + 1, padding=pad != -1)


def counted_numbering(c: Config) -> Numbering:
    pad = c.pad_token_id
    return ByPlace() if pad == -1 else WithoutToken(token=pad, first=pad + 1)  # -1: padding counts too


# for `config` and `computed` of these families
COUNTED_CONFIG: dict[str, ConfigField] = {
    "max_position_embeddings": template.Entry(
        path=lambda spec: spec.embedding.position.length + spec.embedding.position.offset
    ),
}
COUNTED = {"embedding.position": counted_position, "embedding.numbering": counted_numbering}


def stack_name(spec: Model) -> str:
    return "decoder" if isinstance(spec, DecoderModel) else "encoder"


def build_decoder(spec: Model, is_decoder: bool, c: Config) -> Model:
    """If is_decoder, make the layers causal, with optional cross-attention [Rothe et al. 2020]."""
    if not is_decoder:
        return spec
    stack: Stack = value_at(spec, "encoder")
    steps = dict(stack.layers.items())
    attention = steps.pop("attention")
    cross = {"cross": attention.replace(op=attention.op.replace(memory=True))} if c.add_cross_attention else {}
    attention = attention.replace(op=attention.op.replace(mask=read_mask(c)))
    head, layers = spec.head, Block(attention=attention, **cross, **steps)
    generates = isinstance(head, LMHead) and head.shift
    return DecoderModel(
        decoder=stack.replace(layers=layers),
        state_offered="always" if head is None or not head.inputs else "without labels" if generates else "never",
        **{name: value for name, value in spec.items() if name not in ("encoder", "state_offered")},
    )


def head_dropout(*addresses: str) -> template.Entry:
    """The entry `classifier_dropout`; None means hidden_dropout_prob."""
    return template.read_only(
        addresses=addresses, read=lambda value, c: c.hidden_dropout_prob if value is None else value
    )


DECODER_FIELDS: dict[str, ConfigField] = {
    "is_decoder": template.Entry(False, lambda spec: stack_name(spec) == "decoder", build=build_decoder),
    "add_cross_attention": Entry(False, lambda spec: "cross" in getattr(spec, stack_name(spec)).layers.steps),
    "is_causal": causal("decoder.layers.attention.op.mask"),
    "classifier_dropout": head_dropout(
        "head[ClassifyHead].pool.dropout", "head[MultipleChoiceHead].pool.dropout", "head[TagHead].dropout"
    ),
}


def check_shape(c: Config) -> None:
    equal_heads(c)
    if c.type_vocab_size < 1:
        raise ValueError(f"type_vocab_size must be at least 1, got {c.type_vocab_size}")


def check_span(c: Config) -> None:
    if c.architecture.endswith("ForQuestionAnswering") and c.num_labels != 2:
        raise ValueError(f"num_labels must be 2 for question answering (start and end), got {c.num_labels}")


def check(c: Config) -> None:
    check_shape(c)
    check_span(c)


def check_decoder(c: Config) -> None:
    check(c)
    if isinstance(c.classifier_dropout, bool):  # checked even if no head reads it
        raise ValueError(f"classifier_dropout={c.classifier_dropout} is not a number")
    if c.add_cross_attention and not c.is_decoder:
        raise ValueError("add_cross_attention=True needs is_decoder=True")


def renames(modules: dict[str, str]) -> list[Rule]:
    """Return rules that rename all parameters of modules: {published module: our address}."""
    return [Rename(f"{theirs}.{{p}}", f"{ours}.{{p}}") for theirs, ours in modules.items()]


def vocabulary(dense: str, norm: str) -> Callable[[str, Model], list[Rule]]:
    """Rules of the language-model head, if the model has one: decoder, bias, `dense` and `norm`."""

    def rules(theirs: str, spec: Model) -> list[Rule]:
        if not isinstance(spec.head, (LMHead, PretrainingHead)):
            return []
        lm = "head.lm" if isinstance(spec.head, PretrainingHead) else "head"
        # the bias has two names; if the embedding is not tied, the two differ and only the decoder's is used
        names = (f"{theirs}.bias", f"{theirs}.decoder.bias")
        return [
            Copies(names if spec.ties else names[::-1], f"{lm}.out.bias"),
            Copies(names, f"{lm}.idle.bias"),
            Rename(f"{theirs}.decoder.weight", f"{lm}.out.weight"),
            *renames({f"{theirs}.{dense}": f"{lm}.transform.dense", f"{theirs}.{norm}": f"{lm}.transform.norm"}),
        ]

    return rules
