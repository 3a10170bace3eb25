"""ERNIE [Sun et al. 2019]: BERT trained to fill in whole phrases and names. Since ERNIE 2.0 [Sun et al. 2020] each
token also has a task vector."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Size
from anyformer.families.base.fields import Absent
from anyformer.families.base.template import Config, Entry, require_integer
from anyformer.families.bert import BERT, LARGE
from anyformer.parts import Model, TaskText
from anyformer.specs.addresses import value_at


def add_tasks(spec: Model, value: bool, c: Config) -> Model:
    embedding = dict(value_at(spec, "embedding").items())
    return spec.replace(embedding=TaskText(tasks=c.task_type_vocab_size if value else 0, **embedding))


def tasks(spec: Any) -> int:
    if not has_tasks(spec):
        raise Absent
    return spec.embedding.tasks


def has_tasks(spec: Any) -> bool:
    return isinstance(spec.embedding, TaskText) and spec.embedding.tasks > 0


CLASSES = {
    name.replace("Bert", "Ernie").replace("LMHeadModel", "ForCausalLM"): each for name, each in BERT.classes.items()
}
SECOND = {"type_vocab_size": 4, "use_task_id": True}
SAME_AS_BERT = "the size of BERT; the paper gives no count"

ERNIE = BERT.but(
    name="ernie",
    about="text encoders with task vectors, and decoders with the same layers",
    classes=CLASSES,
    config={
        "use_task_id": Entry(False, has_tasks, build=add_tasks),
        "task_type_vocab_size": Entry(3, tasks),
    },
    weights={"~embeddings.task_type_embeddings": "embedding.tasks"},
    prefix="ernie.",
    checks=(*BERT.checks, require_integer("task_type_vocab_size")),
    sizes={
        "ernie-1.0-base": Size({"vocab_size": 18000, "max_position_embeddings": 513, "hidden_act": "relu"}),
        "ernie-2.0-base": Size(SECOND, 110e6, SAME_AS_BERT),
        "ernie-2.0-large": Size({**LARGE, **SECOND}, 340e6, SAME_AS_BERT),
    },
)
