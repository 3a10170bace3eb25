"""CTC [Graves et al. 2006]: transcribe frames of audio without an alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.kernels.loss import IGNORED
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, num_labels, pad_rows
from anyformer.objectives.examples import concatenate, text_of
from anyformer.objectives.heads import head_of, logits_of
from anyformer.objectives.metrics import TRANSCRIPTS, Metrics
from anyformer.objectives.objective import HeadInputs
from anyformer.objectives.recordings import Sounds
from anyformer.parts.head.ctc import CTCModule


class CTC(Sounds, called=("speech recognition", "connectionist temporal classification")):
    """Columns "audio" (see `Sounds`) and "text", the transcript. The loss is per token and covers all alignments."""

    command: ClassVar[str] = "run transcribe RUN FILE"
    metrics: ClassVar[Metrics] = TRANSCRIPTS
    columns: ClassVar[tuple[str, ...]] = ("audio", "text")

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        ids = concatenate(tokenizer.pieces(text_of(example, "text"), add_special_tokens=False))
        return {**super().encode(example, tokenizer), "labels": ids}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return {**super().collate(records, pad), "labels": pad_rows([record["labels"] for record in records], IGNORED)}

    def module(self, model: TransformerModule) -> nn.Module:
        head_of(model, CTCModule, "CTC")
        self.check_embedding(model.spec.embedding)
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": num_labels(batch["labels"])}

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        each, _ = head_of(model, CTCModule, "CTC").row_losses(logits_of(model, states), batch["labels"], states.ctx)
        return {"loss": each.sum()}
