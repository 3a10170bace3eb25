"""Fine-tuning with an additional language-model loss [Radford et al. 2018]: L3 = L2 + lambda L1."""

from __future__ import annotations

from torch import Tensor, nn

from anyformer.kernels.loss import linear_cross_entropy
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch
from anyformer.objectives.causal import next_tokens, num_following
from anyformer.objectives.objective import HeadInputs
from anyformer.objectives.wrapper import ObjectiveWrapper
from anyformer.parts.embedding.text import TextEmbedding
from anyformer.parts.head.language import next_labels
from anyformer.specs.field_types import NonNegative


class Auxiliary(ObjectiveWrapper, called=("auxiliary language model loss",)):
    """Add `weight` (lambda) times a next-token loss to the loss of the task `of` (Classify, Tag, ...). The token
    embedding scores the vocabulary, as in GPT: the model gets no additional head."""

    weight: NonNegative = 0.5

    def module(self, model: TransformerModule) -> nn.Module:
        reads_text = isinstance(model.spec.embedding, TextEmbedding)
        if not reads_text or model.spec.pair or not model.spec.left_to_right:
            raise ValueError("the auxiliary loss predicts the next token: it needs a model that reads left to right")
        if (width := model.embedding.tokens.weight.shape[1]) != model.spec.width:
            raise ValueError(f"token embeddings of width {width} cannot score states of width {model.spec.width}")
        return super().module(model)

    def weights(self, batch: Batch) -> dict[str, float]:
        return {**self.of.weights(batch), "language": num_following(_flat(batch))}

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        labels = next_labels(next_tokens(_flat(batch)), states.ctx)
        language = linear_cross_entropy(states.x, model.embedding.tokens.weight, labels)
        return {**self.of.judge(model, batch, states), "language": self.weight * language}


def _flat(batch: Batch) -> Batch:
    """Flatten choices (B, C, T) to texts (B * C, T)."""
    names = ("input_ids", "attention_mask", "document_ids")
    return {name: batch[name].flatten(0, -2) for name in names if name in batch}
