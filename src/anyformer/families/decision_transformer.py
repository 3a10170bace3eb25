"""The Decision Transformer [Chen et al. 2021]: a GPT-2 that reads returns, states and actions and says what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from anyformer.families import gpt2
from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, again
from anyformer.models import DecoderModel, Model
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.embedding.trajectory import TrajectoryEmbedding, TrajectoryHead
from anyformer.parts.position.absolute import Learned
from anyformer.weights.rules import Rename, Rule

INNER = "DecisionTransformerGPT2Model"  # the stack alone, over tokens
OF_TEXT = {"n_embd", "tie_word_embeddings", "problem_type", "classifier_dropout", "hidden_dropout", "n_ctx"}



def table(spec: Any) -> Learned:
    return getattr(spec.embedding, "everywhere", None) or spec.embedding.position


FIELDS: dict[str, ConfigField] = {
    **{name: field for name, field in gpt2.FIELDS.items() if name not in OF_TEXT and not name.startswith("summary")},
    "state_dim": Field(17, "embedding.state_width"),
    "act_dim": Field(4, "embedding.action_width"),
    "hidden_size": Field(128, "width"),
    "max_ep_len": Field(4096, "embedding.steps"),
    "action_tanh": Field(True, "head.bounded"),
    **again(gpt2.FIELDS, vocab_size=1, n_layer=3, n_head=1, activation_function="relu"),
    "n_positions": Field(1024, lambda spec: table(spec).length),
    "pad_token_id": Ignored(None, "there is no text to pad"),
}


def describe(c: Any) -> Model:
    c = SimpleNamespace(**vars(c), n_embd=c.hidden_size)
    tokens, position = Tokens(vocab_size=c.vocab_size), Learned(length=c.n_positions)
    if c.architecture == INNER:
        embedding: Any = TextEmbedding(tokens=tokens, position=position, token_segments=True, dropout=c.embd_pdrop)
        return DecoderModel(width=c.n_embd, embedding=embedding, decoder=gpt2.stack(c), init=gpt2.init(c))
    return DecoderModel(
        width=c.n_embd,
        embedding=TrajectoryEmbedding(
            state_width=c.state_dim, action_width=c.act_dim, steps=c.max_ep_len, everywhere=position, tokens=tokens,
            dropout=c.embd_pdrop,
        ),
        decoder=gpt2.stack(c),
        head=TrajectoryHead(state_width=c.state_dim, action_width=c.act_dim, bounded=c.action_tanh),
        init=gpt2.init(c),
    )  # fmt: skip


def rules(spec: Model) -> list[Rule]:
    ours = {"timestep": "time", "return": "to_go", "state": "state", "action": "action", "ln": "norm"}
    said = {"state": "state", "action.0": "action", "return": "to_go"}
    return [
        *[Rename(f"embed_{theirs}.{{p}}", f"embedding.{name}.{{p}}") for theirs, name in ours.items()],
        *[Rename(f"predict_{theirs}.{{p}}", f"head.{name}.{{p}}") for theirs, name in said.items()],
        Rename("~wpe.weight", "embedding.everywhere.weight"),
        *gpt2.rules(spec),
    ]


FAMILIES = (
    Family(
        name="decision_transformer",
        about="what to do next, for a return that is asked for",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("DecisionTransformerModel", INNER),
        base=(INNER,),
        prefix="encoder.",
        aliases={name: own for name, own in gpt2.FAMILIES[0].aliases.items() if name != "hidden_size"},
        dropped=gpt2.FAMILIES[0].dropped,
        sizes={
            "decision-transformer-gym": Size({"state_dim": 11, "act_dim": 3, "n_positions": 1024}, None),
        },
    ),
)
