"""Speech to text with an encoder and a decoder [Radford et al. 2022]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from anyformer.generation.defaults import settings_for
from anyformer.kernels.loss import IGNORED
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_rows
from anyformer.objectives.examples import concatenate, text_of
from anyformer.objectives.metrics import TRANSCRIPTS, Metrics
from anyformer.objectives.recordings import Sounds
from anyformer.objectives.rewrite import Rewrite


class Transcribe(Sounds, Rewrite, called=("Whisper", "speech to text")):
    """Columns "audio" (see `Sounds`) and "text", the transcript. The decoder learns to write `prompt` (tokens such as
    "<|en|><|transcribe|><|notimestamps|>"), the text and the end token. The size of a record is their length."""

    command: ClassVar[str] = "run transcribe RUN FILE"
    metrics: ClassVar[Metrics] = TRANSCRIPTS
    columns: ClassVar[tuple[str, ...]] = ("audio", "text")

    prompt: str = ""

    def check(self) -> None:
        Sounds.check(self)
        Rewrite.check(self)

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no end token (eos_token)")
        parts = (tokenizer.pieces(text, add_special_tokens=False) for text in (self.prompt, text_of(example, "text")))
        labels = concatenate(piece for part in (*parts, [[tokenizer.eos_token_id]]) for piece in part)
        return {**super().encode(example, tokenizer), "labels": labels}

    def size(self, record: Record) -> int:
        return len(record["labels"])

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        batch = Sounds.collate(self, records, pad)
        return {**batch, "labels": pad_rows([record["labels"] for record in records], IGNORED)}

    def module(self, model: TransformerModule) -> nn.Module:
        super().module(model)
        self.check_embedding(model.spec.embedding)
        return model

    def generation_options(self, model: TransformerModule, batch: Batch) -> dict[str, Any]:
        free = settings_for(model, {}).max_new_tokens is None
        room = {"max_new_tokens": 2 * batch["labels"].shape[1]} if free else {}
        return {"compile": False, "do_sample": False, **room}
