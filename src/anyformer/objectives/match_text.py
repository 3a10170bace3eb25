"""Sentence embeddings: texts that belong together get similar vectors [Henderson et al. 2017].

B pairs, D width.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_texts
from anyformer.objectives.examples import encode_pair, text_of
from anyformer.objectives.heads import forward_to_head
from anyformer.objectives.metrics import LISTED, NEAREST, Metrics
from anyformer.objectives.objective import Example, HeadInputs, Objective, Predictions, Predictor
from anyformer.objectives.sentence_pooling import SOURCE, SentencePool, pool_states
from anyformer.parts.head.losses import contrastive_loss
from anyformer.specs.field_types import Positive, TwoOrMore

ROWS = 256  # texts that are compared with all pairs at once, to limit memory


class MatchText(Objective, called=("sentence embeddings", "multiple negatives ranking", "in-batch negatives")):
    """Columns "text" and "pair": two texts that belong together, such as a question and a passage that answers it. The
    vector of a text is the mean of its last hidden states, or another `pool`. The loss is the cross-entropy of each
    text over the pairs of the batch and of each pair over its texts; scores are cosines divided by `temperature`.

    The negatives are the other pairs of the same micro-batch on the same device, so a larger micro-batch teaches more.
    Rows with an equal text are not each other's negatives. Texts are truncated to `length` tokens."""

    command: ClassVar[str] = "run embed RUN TEXT"
    metrics: ClassVar[Metrics] = NEAREST
    columns: ClassVar[tuple[str, ...]] = ("text", "pair")

    length: TwoOrMore = 128
    temperature: Positive = 0.05
    pool: SentencePool = "mean"

    @property
    def truncates(self) -> int | None:
        return self.length

    @property
    def source_fields(self) -> dict[str, Any]:
        return {SOURCE: self.pool}

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        texts = [text_of(example, name) for name in self.columns]
        first, second = (encode_pair(tokenizer, text, None, self.length)["input_ids"] for text in texts)
        keys = np.asarray([zlib.crc32(text.encode()) for text in texts], np.int64)
        return {"input_ids": first, "pair_ids": second, "keys": keys}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        """Return the B texts and then the B pairs as rows of one batch; equal "keys" (B, 2) are equal texts."""
        rows = [{"input_ids": record[name]} for name in ("input_ids", "pair_ids") for record in records]
        return {**pad_texts(rows, pad), "keys": torch.from_numpy(np.stack([record["keys"] for record in records]))}

    def module(self, model: TransformerModule) -> nn.Module:
        if model.spec.pair or model.spec.towers or "input_ids" not in model.inputs:
            raise ValueError("MatchText needs an encoder or a decoder that reads text")
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["keys"]))}

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        first, second = self.vectors(batch, states)
        scores, keys = first @ second.t() / self.temperature, batch["keys"]
        equal = (keys[:, None] == keys).any(-1).fill_diagonal_(False)
        return {"loss": contrastive_loss(scores.masked_fill(equal, -torch.inf))}

    def vectors(self, batch: Batch, states: HeadInputs) -> tuple[Tensor, Tensor]:
        """Return the vectors (B, D) of texts and of pairs, in fp32, of length 1."""
        pooled = pool_states(states.x, batch.get("attention_mask"), self.pool)
        first, second = F.normalize(pooled.float(), dim=-1).chunk(2)
        return first, second

    def predict(self, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]) -> Predictions:
        """For each text, predict the most similar pairs of all examples, the best first."""
        found: list[Any] = [None] * len(records)
        for which, batch in job.batches(self, [record for (record,) in records]):
            with job.autocast():
                states = forward_to_head(job.model, batch)
            for i, first, second in zip(which, *self.vectors(batch, states)):
                found[i] = first.cpu(), second.cpu()
        wanted = [example["pair"] for example in examples]
        index = {text: i for i, text in reversed([*enumerate(wanted)])}  # each different pair, once
        names = list(index)
        table = torch.stack([found[i][1] for i in index.values()])
        best = [
            (torch.stack([first for first, _ in found[start : start + ROWS]]) @ table.t()).topk(min(LISTED, len(names)))
            for start in range(0, len(found), ROWS)
        ]
        predicted = [[names[i] for i in row] for each in best for row in each.indices.tolist()]
        return Predictions(predicted, wanted, [row[0] for each in best for row in each.values.tolist()])

    def inputs_of(self, example: Example) -> dict[str, Any]:
        return {"text": example["text"]}
