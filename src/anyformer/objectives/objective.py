"""The base class of objectives: how an example becomes numbers, and the loss of a model on them.

An example goes through four steps. `encode` turns it into a record once, before training; records are stored on disk.
`vary` changes a record at random each time it is seen (masking, noise). It is a pure function of the record and a
random generator, which depends on the seed and on the number of examples before it, never on the process. `collate`
makes a padded batch. `losses` runs the model and returns each term as a *sum*; before the forward pass, `weights`
returns how many items each sum is over. The loss is the sum over all terms of sum / total weight, so micro-batches and
processes give exactly the loss of one large batch.

Before these steps, `ready` gives the objective facts about the tokenizer, such as its mask token. For evaluation,
`predict` returns the model's predictions and the right answers, and `metrics` compares them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.generation import generate
from anyformer.generation.defaults import settings_for
from anyformer.generation.writing import new_tokens
from anyformer.inputs.long import LongText
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.models import position_limit
from anyformer.models.base import TransformerModule
from anyformer.models.call import HeadInputs
from anyformer.objectives.batches import Batch, Record, num_labels
from anyformer.objectives.examples import concatenate, text_of
from anyformer.objectives.heads import forward_to_head, logits_of, require_head
from anyformer.objectives.metrics import Metrics
from anyformer.specs.part import Part

Example = Mapping[str, Any]  # a raw example: column -> value
Baseline = Literal["tokens", "labels"]  # whose counts give the loss that a model has to beat
ANSWERS = frozenset(("label", "tags", "target", "answers"))  # columns of right answers
PERPLEXITY = ("perplexity",)
LOSS_METRICS = (*PERPLEXITY, "bits_per_byte")  # metrics that follow from the mean loss per token


class Predictions(NamedTuple):
    predicted: list[Any]
    wanted: list[Any]
    scores: list[float] | None = None  # the probability of each predicted label


class Objective(Part, abstract=True):
    """A training objective: turns raw examples into batches, and computes the loss of a model on them."""

    optional_columns: ClassVar[tuple[str, ...]] = ()  # columns that `encode` reads if they exist
    second_model: ClassVar[bool] = False  # whether it uses a second model: a teacher, a generator, an autoencoder
    command: ClassVar[str] = ""  # the command that uses a trained model: "run tag RUN TEXT"
    loss_metrics: ClassVar[tuple[str, ...]] = ()  # metrics of the mean loss; bits per byte only if it covers all tokens

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a raw example that `encode` needs; a missing one is reported before training."""
        return ("text",)

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns that contain texts; a vocabulary can be trained on them."""
        return self.columns

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the scores."""
        return ()

    @property
    def problem(self) -> str | None:
        """The kind of labels that a classification head gets ("regression"); None: it follows from the labels."""
        return None

    @property
    def extra_tokens(self) -> int:
        """How many ids the model needs in addition to the tokenizer's, such as the codes of an autoencoder."""
        return 0

    @property
    def packs(self) -> bool:
        """Whether records are texts ("input_ids") that may be split and packed into full rows with "document_ids"."""
        return False

    @property
    def truncates(self) -> int | None:
        """The number of tokens that `encode` truncates a text to. It is saved with the model and used at inference."""
        return None

    @property
    def partners(self) -> int:
        """How many other records, drawn at random from the same split, `vary` gets after the generator."""
        return 0

    @property
    def draws(self) -> bool:
        """Whether a batch gets "seeds" (B,), 63 random bits per example. With them, `losses` can draw numbers on the
        device that would be too many for `vary`."""
        return False

    @property
    def task(self) -> Objective:
        """The objective that is evaluated: this one, or the one that it wraps."""
        return self

    @property
    def plain(self) -> Self:
        """This objective without label smoothing, to evaluate it."""
        return self

    @property
    def metrics(self) -> Metrics | None:
        """The metrics of the predictions; None if the objective has only a loss."""
        return None

    @property
    def baseline(self) -> Baseline | None:
        """The baseline that is reported before training; None: no baseline."""
        return None

    def reads(self, length: int) -> int:
        """Return how many tokens of text are packed into a row, if the model's input has `length` tokens."""
        return length

    def with_max_length(self, length: int) -> Self:
        """Return this objective for a model that reads at most `length` tokens."""
        return self

    def ready(self, tokenizer: Any) -> Self:
        """Return this objective with the facts that it needs about the tokenizer. A second call changes nothing."""
        return self

    def with_class_counts(self, counts: Mapping[str, int]) -> Self:
        """Return this objective with what depends on the number of training examples of each class."""
        return self

    @property
    def source_fields(self) -> dict[str, Any]:
        """Fields for the `source` of the trained description: settings of labels that tasks need at inference."""
        return {}

    def tokenizer_settings(self, tokenizer: Any) -> dict[str, Any]:
        """Return settings of the tokenizer with which the trained model reads its inputs."""
        return {}

    def write_settings(self, folder: Path) -> Path | None:
        """Write the settings that a model needs to read such examples, except the tokenizer. Return their folder."""
        return None

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record | list[Record]:
        """Return the record of a raw example, or several (windows of a long text). Raise ValueError if something is
        wrong with it. The default is for packed texts, and uses `ids`."""
        return {"input_ids": concatenate(self.ids(text_of(example, "text"), tokenizer))}

    def ids(self, text: str | LongText, tokenizer: Any) -> Iterator[list[int]]:
        """Yield the token ids of one text in parts, because it may not fit in memory. Used if texts are packed."""
        raise NotImplementedError

    def size(self, record: Record) -> int:
        """Return the length of a record as a row of the model's input."""
        return max((value.size for value in record.values()), default=0)

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        """Return the record with random changes; called each time the record is seen."""
        return record

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        """Return a padded batch: the inputs of the model and the targets of `losses`."""
        raise NotImplementedError

    def module(self, model: TransformerModule) -> nn.Module:
        """Return the module to train: the model, or a module that contains it and a second model (a generator). Raise
        ValueError if the model does not fit this objective."""
        return model

    def initialize(self, model: TransformerModule) -> None:
        """Initialize a model that was built from its description, before training (with a teacher's weights)."""

    def before_step(self, trained: Any, step: int) -> None:
        """Set values that depend on the step (a falling temperature). Called before each training step."""

    def weights(self, batch: Batch) -> dict[str, float]:
        """Return the weight of each term in this batch, without a forward pass (default: the number of labels)."""
        return {"loss": num_labels(batch["labels"])}

    def losses(self, trained: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the sum of each term over the batch, with gradient. `trained` is the result of `module`. The factor of
        a term (lambda) is part of its sum."""
        return self.judge(trained, batch, forward_to_head(trained, batch))

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        """Compute `losses` from hidden states, so that wrapped objectives share one forward pass. The default is the
        loss of the model's head."""
        terms = require_head(model).losses(states.x, states.ctx, states.inputs).values()
        return {"loss": torch.stack([term.sum for term in terms]).sum()}

    def predict(self, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]) -> Predictions:
        """Return predictions and right answers, if there are `metrics`. `records` has the records of each example."""
        raise TypeError(f"{type(self).__name__} has no metrics, so it makes no predictions")

    def inputs_of(self, example: Example) -> dict[str, Any]:
        """Return the inputs of an example that can be read in a table: its texts and numbers, without the answer."""
        names = [name for name in self.columns if name not in ANSWERS]
        return {name: example[name] for name in names if isinstance(example[name], str | int | float | list | tuple)}

    def target_bytes(self, example: Example) -> int:
        """Return the number of bytes of the text that is predicted."""
        return len(str(example["text"]).encode())


class WithFrozenModel(nn.Module):
    """A trained model and a frozen one, which moves to devices with it but is in no optimizer and no checkpoint."""

    frozen: Any

    def __init__(self, model: TransformerModule, frozen: TransformerModule) -> None:
        super().__init__()
        self.model: Any = model
        self.__dict__["frozen"] = frozen.eval().requires_grad_(False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> WithFrozenModel:
        self.__dict__["frozen"]._apply(fn, recurse)
        super()._apply(fn, recurse)
        return self


# -- predictions ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Predictor:
    """A model with its tokenizer and the settings for predictions."""

    model: TransformerModule
    tokenizer: Tokenizer
    pad: int = 0
    size: int = 32  # records per batch
    num_beams: int = 1
    autocast: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext  # not used for generation
    progress: Callable[[int, int], object] = lambda done, total: None

    def batches(self, objective: Objective, records: Sequence[Record]) -> Iterator[tuple[list[int], Batch]]:
        """Yield (indices, batch), the longest first, so that lack of memory shows at once."""
        order = sorted(range(len(records)), key=lambda i: -objective.size(records[i]))
        for start in range(0, len(order), self.size):
            which = order[start : start + self.size]
            batch = objective.collate([records[i] for i in which], self.pad)
            self.progress(start, len(order))
            yield which, {name: tensor.to(self.model.device) for name, tensor in batch.items()}
        self.progress(len(order), len(order))

    def logits(self, objective: Objective, records: Sequence[Record]) -> list[Tensor]:
        """Return the logits of each record, on the CPU."""
        logits: list[Any] = [None] * len(records)
        for which, batch in self.batches(objective, records):
            with self.autocast():
                rows = logits_of(self.model, forward_to_head(self.model, batch)).cpu()
            for i, row in zip(which, rows):
                logits[i] = row
        return logits

    def labels(self, objective: Objective, records: Sequence[list[Record]]) -> Predictions:
        """Return the likeliest label of each record with its probability, and its "label"."""
        rows = [record for (record,) in records]
        likeliest = [logits.float().softmax(-1).max(-1) for logits in self.logits(objective, rows)]
        predicted, scores = [int(each.indices) for each in likeliest], [float(each.values) for each in likeliest]
        return Predictions(predicted, [int(record["label"]) for record in rows], scores)

    def texts(self, objective: Objective, records: Sequence[Record], **options: Any) -> list[str]:
        """Generate a text for each record, with the `options` of generate (default: greedy), up to a stop string.
        Without a length limit in the options or the model, the text has at most 2 T + 20 tokens for an input of T
        tokens. It ends where the model has no more positions."""
        texts = [""] * len(records)
        limit, usual = position_limit(self.model.spec), settings_for(self.model, options)
        for which, batch in self.batches(objective, records):
            T = batch["input_ids"].shape[1]
            free = usual.max_new_tokens is None and usual.max_length is None
            most = 2 * T + 20 if free else usual.max_new_tokens
            if limit is not None and most is not None:  # a decoder's own text follows the input
                most = min(most, limit if self.model.spec.pair else max(limit - T, 1))
            room = {} if most is None else {"max_new_tokens": most}
            ids = generate(
                self.model,
                batch["input_ids"],
                attention_mask=batch.get("attention_mask"),
                tokenizer=self.tokenizer,
                **{"do_sample": False, "compile": False, **options, **room},
            )
            new = new_tokens(self.model, ids, T, usual.eos)
            for i, text in zip(which, self.tokenizer.batch_decode(new, skip_special_tokens=True), strict=True):
                for stop in options.get("stop_strings") or ():
                    text = text.partition(stop)[0]
                texts[i] = text.strip()
        return texts
