"""Replaced token detection [Clark et al. 2020, ELECTRA]: a small generator fills in masked tokens, and the model
decides for every token whether it is the original. Both are trained together; no gradient flows through the samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.loss import IGNORED
from anyformer.models import Model
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, num_labels
from anyformer.objectives.heads import forward_to_head, language_head, logits_of
from anyformer.objectives.masked import Masked, masked_loss
from anyformer.objectives.objective import HeadInputs
from anyformer.parts.head.losses import binary_loss
from anyformer.specs.field_types import NonNegative


class ReplacedTokens(Masked, called=("RTD", "replaced token detection")):
    """`generator` describes a masked language model, which is discarded after training. It predicts 15 % of the tokens
    (85 % of them become the mask token, as in the published code). `weight` (lambda) is the factor of the
    discriminator's mean loss over all tokens. Tables at the addresses `share` are shared if their shapes are equal."""

    second_model: ClassVar[bool] = True
    command: ClassVar[str] = "run detect-replaced RUN TEXT"
    loss_metrics: ClassVar[tuple[str, ...]] = ()  # the loss has terms that are not per token

    generator: Model
    weight: NonNegative = 50.0
    mask: NonNegative = 0.85
    random: NonNegative = 0.0
    share: tuple[str, ...] = ("embedding.tokens.weight", "embedding.position.weight", "embedding.segments.weight")
    seed: int = 0

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        seen = super().vary(record, random)
        # drawn with the data, so that sampling does not depend on the process
        return {**seen, "uniforms": random.random(len(seen["labels"]))}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        batch = super().collate(records, pad)
        uniforms = np.concatenate([record["uniforms"] for record in records])
        extra = len(batch["labels"]) - len(uniforms)
        return {**batch, "uniforms": torch.from_numpy(np.pad(uniforms, (0, extra)).astype(np.float32))}

    def module(self, model: TransformerModule) -> nn.Module:
        from anyformer.models.construct import build

        generator = build(self.generator, seed=self.seed)
        return self.with_generator(model, generator)

    def with_generator(self, model: TransformerModule, generator: TransformerModule) -> WithGenerator:
        super().module(generator)
        if model.head is None or model.spec.left_to_right:
            raise ValueError("ReplacedTokens needs an encoder with one score per token (a TagHead with 1 label)")
        ours, theirs = dict(model.named_parameters()), dict(generator.named_parameters(remove_duplicate=False))
        shared = [name for name in self.share if name in ours and name in theirs]
        for name in shared:
            if ours[name].shape == theirs[name].shape:
                for alias in [a for a, tensor in theirs.items() if tensor is theirs[name]]:
                    path, _, leaf = alias.rpartition(".")
                    setattr(generator.get_submodule(path), leaf, ours[name])
        return WithGenerator(model, generator)

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"generator": num_labels(batch["labels"]), "discriminator": float(is_token(batch).sum())}

    def losses(self, trained: WithGenerator, batch: Batch) -> dict[str, Tensor]:
        hidden = forward_to_head(trained.generator, batch)
        generator = masked_loss(trained.generator, batch, hidden)
        ids, replaced = self.fill_in(trained.generator, batch, hidden)
        logits = logits_of(trained.model, forward_to_head(trained.model, {**batch, "input_ids": ids}))
        detection = binary_loss(logits.view_as(ids), replaced, is_token(batch))
        return {"generator": generator, "discriminator": self.weight * detection.sum}

    @torch.no_grad()
    def fill_in(self, generator: TransformerModule, batch: Batch, states: HeadInputs) -> tuple[Tensor, Tensor]:
        """Return ids (B, T) with masked tokens filled in by the generator, and (B, T) True where they are wrong."""
        places, labels = batch["places"], batch["labels"]
        scores = language_head(generator).scores(states.x.flatten(0, 1)[places]).float()
        levels = scores.softmax(-1).cumsum(-1)  # (M, V): cumulative probabilities
        sampled = (levels <= batch["uniforms"][:, None] * levels[:, -1:]).sum(-1).clamp(max=scores.shape[-1] - 1)
        is_masked = labels != IGNORED
        ids = batch["input_ids"].flatten()
        wrong = torch.zeros_like(ids, dtype=torch.bool)
        # IGNORED labels have index 0 in `places`; they write to an extra last element, which is cut off
        targets = torch.where(is_masked, places, len(ids))
        ids = F.pad(ids, (0, 1)).index_put((targets,), torch.where(is_masked, sampled, 0))[:-1]
        wrong = F.pad(wrong, (0, 1)).index_put((targets,), is_masked & (sampled != labels))[:-1]
        return ids.view_as(batch["input_ids"]), wrong.view_as(batch["input_ids"])


class WithGenerator(nn.Module):
    """The model and the generator, which is trained with it."""

    def __init__(self, model: TransformerModule, generator: TransformerModule) -> None:
        super().__init__()
        self.model, self.generator = model, generator


def is_token(batch: Batch) -> Tensor:
    """(B, T) True for real tokens, False for padding."""
    mask = batch.get("attention_mask")
    return torch.ones_like(batch["input_ids"], dtype=torch.bool) if mask is None else mask.bool()
