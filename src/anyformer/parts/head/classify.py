"""Heads with one output per sequence: a pooled vector, a class, or the best of several choices.

B batch, T tokens, C classes or choices.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.parts.head.base import Head, HeadModule, NamedTensors, Outputs
from anyformer.parts.head.losses import Loss, Problem, classification_loss
from anyformer.parts.head.pool import Pool
from anyformer.runtime.context import Context
from anyformer.specs.part import Site


class PooledOutput(Head):
    """The hidden states and their pooled vector (BertModel)."""

    pool: Pool


class PooledOutputModule(HeadModule, of=PooledOutput):
    def __init__(self, part: PooledOutput, site: Site) -> None:
        super().__init__()
        self.pool = part.pool.build(site.child("pool"))

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        return {"last_hidden_state": x, "pooler_output": self.pool(x, ctx, inputs)}


class ClassifyHead(
    Head, called=("sequence classification", "text classification", "sentiment analysis", "natural language inference")
):
    """Scores of `num_labels` classes for a sequence."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)

    num_labels: int
    pool: Pool
    bias: bool = True
    problem: Problem | None = None  # kind of labels; None: inferred from the labels
    shares: bool = False  # labels (B, C) are class probabilities; with one label, logits are (B,) (DeBERTa)

    def build(self, site: Site) -> nn.Module:
        return ClassifyModule(self.pool, self.num_labels, self.bias, self.problem, site, self.shares)


class ClassifyModule(HeadModule):
    def __init__(
        self, pool: Pool, num_labels: int, bias: bool, problem: Problem | None, site: Site, shares: bool = False
    ) -> None:
        super().__init__()
        self.num_labels, self.problem, self.shares = num_labels, problem, shares
        self.pool = pool.build(site.child("pool"))
        self.out = nn.Linear(pool.width or site.width, num_labels, bias=bias) if num_labels else nn.Identity()

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        return {"logits": self.out(self.pool(x, ctx, inputs))}

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        return classification_loss(logits, labels, self.problem, self.shares)

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        outputs = super().forward(x, ctx, inputs)
        if self.shares and outputs["loss"] is not None and self.problem is None and self.num_labels == 1:
            outputs["logits"] = None if outputs["logits"] is None else outputs["logits"].flatten()
        return outputs


class MultipleChoiceHead(Head):
    """One score per choice; inputs are (B, C, T), and the model processes every choice separately."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)
    requires: ClassVar[tuple[str, ...]] = ("a row of tokens",)

    pool: Pool


class MultipleChoiceModule(HeadModule, of=MultipleChoiceHead):
    def __init__(self, part: MultipleChoiceHead, site: Site) -> None:
        super().__init__()
        self.pool = part.pool.build(site.child("pool"))
        self.out = nn.Linear(part.pool.width or site.width, 1)

    def arrange(self, inputs: dict[str, Any]) -> dict[str, Any]:
        tensors = {name: v for name, v in inputs.items() if isinstance(v, Tensor) and name != "labels"}
        memory = {name for name in tensors if name.startswith("encoder_")}  # one per row, shared by its choices
        first = next((v for name, v in tensors.items() if name not in memory), None)
        if first is None or first.dim() < 3:
            raise ValueError("multiple choice needs inputs of shape (batch, choices, tokens)")
        count = first.shape[1]
        flat = {n: v.repeat_interleave(count, 0) if n in memory else v.flatten(0, 1) for n, v in tensors.items()}
        return {**inputs, **flat, "num_choices": count}

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        return {"logits": self.out(self.pool(x, ctx, inputs)).view(-1, inputs["num_choices"])}
