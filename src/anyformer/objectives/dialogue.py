"""Conversations [Ouyang et al. 2022]: learn the assistant's messages; all other messages are only context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from torch import nn

from anyformer.inputs import chat
from anyformer.inputs.truncation import count_truncated
from anyformer.kernels.loss import IGNORED
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_rows, pad_texts
from anyformer.objectives.causal import NextToken
from anyformer.objectives.examples import array, field
from anyformer.objectives.metrics import TEXTS, Metrics
from anyformer.objectives.objective import PERPLEXITY, Example, Objective, Predictions, Predictor
from anyformer.specs.field_types import TwoOrMore

MORE_TOKENS = 20  # a generated answer may be this much longer than the longest right answer


class Dialogue(Objective, called=("SFT", "instruction tuning", "chat", "supervised fine-tuning")):
    """Column "messages", a list of {"role": ..., "content": ...} with any number of turns, and optionally "tools". The
    checkpoint's chat template formats them; without one, `chat.PLAIN`. A conversation of more than `length` tokens is
    truncated after the last answer that fits. Metrics compare the last answer with the one that the model generates."""

    optional_columns: ClassVar[tuple[str, ...]] = ("tools",)
    command: ClassVar[str] = "chat RUN"
    loss_metrics: ClassVar[tuple[str, ...]] = PERPLEXITY
    columns: ClassVar[tuple[str, ...]] = ("messages",)
    metrics: ClassVar[Metrics] = TEXTS

    length: TwoOrMore | None = None
    template: str | None = None  # default: the checkpoint's template

    def ready(self, tokenizer: Any) -> Self:
        if tokenizer is None:
            raise ValueError("conversations need a checkpoint with a tokenizer")
        usual = self.template or ("" if chat.templates(tokenizer) else chat.PLAIN)
        return self.replace(template=chat.choose(tokenizer, usual or None))  # records depend on the template

    def tokenizer_settings(self, tokenizer: Any) -> dict[str, Any]:
        own = self.template is not None and self.template not in chat.templates(tokenizer).values()
        return {"chat_template": self.template} if own else {}

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        messages = field(example, "messages")
        if not isinstance(messages, (list, tuple)) or not all(isinstance(one, Mapping) for one in messages):
            raise ValueError("column 'messages' must be a list of {'role': ..., 'content': ...}")
        answers = [i + 1 for i, message in enumerate(messages) if message.get("role") == "assistant"]
        if not answers:
            raise ValueError("column 'messages' has no message with role 'assistant'")
        if any(not messages[i - 1].get("content") and not messages[i - 1].get("tool_calls") for i in answers):
            raise ValueError("column 'messages': a message of the assistant is empty")
        full_length = 0
        for stop in dict.fromkeys((len(messages), *reversed(answers))):
            given = {"template": self.template, "tools": example.get("tools")}
            ids, is_answer = chat.encode_with_mask(tokenizer, messages[:stop], **given)
            full_length = full_length or len(ids)
            if self.length is None or len(ids) <= self.length:
                count_truncated(full_length - len(ids))
                break
        else:
            raise ValueError(f"{len(ids):,} tokens up to the first answer; the limit is {self.length:,}")
        labels = np.where([False, *is_answer[1:]], array(ids), IGNORED)  # the first token is not predicted
        if (labels == IGNORED).all():
            raise ValueError("the chat template marks no text of the assistant")
        return {"input_ids": array(ids), "labels": array(labels)}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return {**pad_texts(records, pad), "labels": pad_rows([record["labels"] for record in records], IGNORED)}

    def predict(self, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]) -> Predictions:
        """Generate the last answer of each conversation that fits into `length` tokens with its prompt."""
        prompts, wanted, longest = [], list[str](), 0
        for example in examples:
            messages = example["messages"]
            answers = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
            for last in reversed(answers):
                given: dict[str, Any] = {"template": self.template, "tools": example.get("tools")}
                ids = chat.encode(job.tokenizer, messages[:last], **given)
                answer = str(messages[last].get("content") or "").strip()
                tokens = len(job.tokenizer.encode(answer, add_special_tokens=False))
                if self.length is None or len(ids) + tokens <= self.length:
                    break
            prompts.append({"input_ids": array(ids), "labels": array(ids)})
            wanted.append(answer)
            longest = max(longest, tokens)
        return Predictions(
            job.texts(self, prompts, num_beams=job.num_beams, max_new_tokens=longest + MORE_TOKENS), wanted
        )

    def inputs_of(self, example: Example) -> dict[str, Any]:
        questions = [message["content"] for message in example["messages"] if message.get("role") != "assistant"]
        return {"prompt": str(questions[-1]) if questions else ""}

    def module(self, model: TransformerModule) -> nn.Module:
        return NextToken().module(model)
