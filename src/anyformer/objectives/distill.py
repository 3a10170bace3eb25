"""Distillation [Hinton et al. 2015; Sanh et al. 2019]: a small model learns the output distribution of a large one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anyformer.kernels.loss import IGNORED, rows_of_chunk
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch
from anyformer.objectives.causal import NextToken
from anyformer.objectives.choose import Choose
from anyformer.objectives.classify import Classify
from anyformer.objectives.heads import forward_to_head, language_head, logits_of
from anyformer.objectives.masked import Masked
from anyformer.objectives.objective import HeadInputs, WithFrozenModel
from anyformer.objectives.rewrite import Rewrite
from anyformer.objectives.tag import Tag
from anyformer.objectives.wrapper import ObjectiveWrapper
from anyformer.parts.head.language import LMHeadModule
from anyformer.parts.head.pretraining import PretrainingModule
from anyformer.specs.field_types import NonNegative, Positive


class Distill(ObjectiveWrapper, called=("knowledge distillation", "teacher and student", "KL divergence")):
    """`teacher` is the folder or hub id of a model with the same vocabulary (or labels); `of` provides the data and the
    hard targets. The loss has three terms, each a mean times its factor; a term with factor 0 is not computed. The
    defaults are DistilBERT's:

    soft     KL(teacher || student) of the outputs at `temperature`, times temperature^2, without padding; not for
             numbers (a regression) or independent labels (MultiLabel)
    hard     the loss of `of`
    cosine   1 - cosine similarity of the last hidden states, without padding

    With `layers`, a student that is built from its description starts with these layers of the teacher, and with the
    teacher's weights at all other addresses. DistilBERT used 0, 2, 4, 7, 9, 11.
    """

    second_model: ClassVar[bool] = True

    teacher: str
    temperature: Positive = 2.0
    soft: NonNegative = 5.0
    hard: NonNegative = 2.0
    cosine: NonNegative = 1.0
    layers: tuple[int, ...] = ()

    def check(self) -> None:
        if not self.soft + self.hard + self.cosine:
            raise ValueError("Distill: soft, hard and cosine are all 0")
        if not isinstance(self.of, (NextToken, Masked, Rewrite, Classify, Tag, Choose)):
            raise ValueError(f"Distill: {type(self.of).__name__} has no logits to distill")
        outputs = {"regression": "a number", "multi_label_classification": "independent labels"}.get(self.problem or "")
        if self.soft and outputs:  # softmax of one number is always 1
            raise ValueError(
                f"Distill.soft: the outputs of {type(self.of).__name__} are {outputs}, not one distribution; "
                "set soft to 0"
            )

    def initialize(self, model: TransformerModule) -> None:
        from anyformer.checkpoint import load

        super().initialize(model)
        if self.layers:
            copy_layers(model, load(self.teacher), self.layers)

    def module(self, model: TransformerModule) -> nn.Module:
        from anyformer.checkpoint import load

        return self.with_teacher(model, load(self.teacher))

    def with_teacher(self, model: TransformerModule, teacher: TransformerModule) -> WithFrozenModel:
        super().module(model)
        widths = model.spec.width, teacher.spec.width
        if self.cosine and widths[0] != widths[1]:
            raise ValueError(f"cosine needs states of equal width, got {widths[0]} and {widths[1]}; set cosine to 0")
        heads: list[Any] = [find_language_head(m) or m.head for m in (model, teacher)]
        sizes = [head.out.out_features for head in heads]
        if sizes[0] != sizes[1]:
            raise ValueError(f"the model has {sizes[0]} outputs and the teacher {sizes[1]}")
        return WithFrozenModel(model, teacher)

    def weights(self, batch: Batch) -> dict[str, float]:
        tokens = float(self.token_mask(batch).sum())
        answers = tokens if isinstance(self.of, (NextToken, Masked, Rewrite, Tag)) else float(len(batch["labels"]))
        terms = {"soft": (self.soft, answers), "cosine": (self.cosine, tokens)}
        hard = self.of.weights(batch) if self.hard else {}
        return {**{name: weight for name, (factor, weight) in terms.items() if factor}, **rename_terms(hard)}

    def token_mask(self, batch: Batch) -> Tensor:
        """(B, T) True for real tokens of the output, False for padding."""
        if isinstance(self.of, Rewrite):
            return batch["labels"] != IGNORED
        mask = batch.get("attention_mask")
        mask = torch.ones_like(batch["input_ids"]) if mask is None else mask
        return mask.bool().flatten(0, -2)  # choices (B, C, T) -> texts (B * C, T)

    def losses(self, trained: WithFrozenModel, batch: Batch) -> dict[str, Tensor]:
        student, teacher = trained.model, trained.frozen
        states = forward_to_head(student, batch)
        with torch.no_grad():
            teacher_states = forward_to_head(teacher, batch)
        is_token = self.token_mask(batch)
        out = {}
        if self.soft:
            out["soft"] = self.soft * self.soft_loss(student, teacher, states, teacher_states, is_token)
        if self.cosine:
            distance = 1 - F.cosine_similarity(states.x.float(), teacher_states.x.float(), dim=-1)
            out["cosine"] = self.cosine * torch.where(is_token, distance, 0).sum()
        hard = self.of.judge(student, batch, states) if self.hard else {}
        return {**out, **rename_terms({name: self.hard * value for name, value in hard.items()})}

    def soft_loss(
        self,
        student: TransformerModule,
        teacher: TransformerModule,
        states: HeadInputs,
        teacher_states: HeadInputs,
        is_token: Tensor,
    ) -> Tensor:
        if find_language_head(student) is None:
            with torch.no_grad():
                targets = logits_of(teacher, teacher_states)
            kl = divergence(logits_of(student, states), targets, self.temperature)  # (B, T) or (B,)
            return torch.where(is_token, kl, 0).sum() if kl.dim() == 2 else kl.sum()
        ours, theirs = language_head(student), language_head(teacher)

        def chunk(x: Tensor, y: Tensor, is_token: Tensor) -> Tensor:
            with torch.no_grad():
                targets = theirs.scores(y)
            kl = divergence(ours.scores(x), targets, self.temperature)
            return torch.where(is_token, kl, 0).sum()

        return by_chunks(
            chunk, ours.part.vocab_size, states.x.flatten(0, 1), teacher_states.x.flatten(0, 1), is_token.flatten()
        )


LAYER = re.compile(r"(?<=\blayers\.)(\d+)(?=\.)")


@torch.no_grad()
def copy_layers(student: TransformerModule, teacher: TransformerModule, layers: tuple[int, ...]) -> None:
    """Copy each tensor of the student from the same address of the teacher; layer i of the student is layer layers[i]
    of the teacher. Tensors that only the teacher has (BERT's segments) are skipped."""
    theirs = teacher.state_dict(keep_vars=True)
    depth = 1 + max((int(match[0]) for name in theirs if (match := LAYER.search(name))), default=-1)
    if max(layers) >= depth:
        raise ValueError(f"Distill.layers: the teacher has no layer {max(layers)}; its last is {depth - 1}")
    ours = dict(student.named_parameters())
    if (count := 1 + max((int(match[0]) for name in ours if (match := LAYER.search(name))), default=-1)) != len(layers):
        raise ValueError(f"Distill.layers names {len(layers)} layers of the teacher, but the student has {count}")
    is_nested = isinstance(teacher.head, PretrainingModule) and not isinstance(student.head, PretrainingModule)
    for name, tensor in ours.items():
        source = LAYER.sub(lambda match: str(layers[int(match[0])]), name, count=1)
        if is_nested and source.startswith("head."):
            source = source.replace("head.", "head.lm.", 1)
        if source not in theirs or theirs[source].shape != tensor.shape:
            reason = f"its shape there is {tuple(theirs[source].shape)}" if source in theirs else "it is missing there"
            raise ValueError(f"Distill.layers: {name} {tuple(tensor.shape)} cannot come from the teacher: {reason}")
        tensor.copy_(theirs[source])


def find_language_head(model: TransformerModule) -> LMHeadModule | None:
    head = model.head.lm if isinstance(model.head, PretrainingModule) else model.head
    return head if isinstance(head, LMHeadModule) else None


def rename_terms(hard: dict[str, Any]) -> dict[str, Any]:
    return {"hard" if name == "loss" else f"hard_{name}": value for name, value in hard.items()}


def divergence(ours: Tensor, theirs: Tensor, temperature: float) -> Tensor:
    """(..., V) scores -> (...): KL divergence at `temperature`, times its square so that gradients keep their scale."""
    logs = F.log_softmax(ours.float() / temperature, -1), F.log_softmax(theirs.float() / temperature, -1)
    return F.kl_div(*logs, reduction="none", log_target=True).sum(-1) * temperature**2


def by_chunks(function: Callable[..., Tensor], V: int, *rows: Tensor) -> Tensor:
    """Sum `function` over chunks of rows. The backward pass recomputes the scores instead of storing them."""
    size = rows_of_chunk(rows[0].device.type, V)
    parts = [checkpoint(function, *part, use_reentrant=False) for part in zip(*(row.split(size) for row in rows))]
    return torch.stack(parts).sum()
