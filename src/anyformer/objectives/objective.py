"""The base class of objectives: how an example becomes numbers, and the loss of a model on them.

An example goes through four steps. `encode` turns it into a record once, before training, and the record is kept on
disk. `vary` is what chance does to a record each time it is seen (masking, noise): a pure function of the record and a
generator that depends on the seed and on how many examples came before, never on the process that does it. `collate`
makes a padded batch. `losses` runs the model and gives each term as a *sum*, which the model's head finds, and
`weights` says over how much before that, so that micro-batches and processes add up to exactly one large batch: the
loss is the sum over terms of sum / total weight.

Before all of them, `ready` gives the objective facts about the tokenizer (its mask token, for example).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.inputs.long import LongText
from anyformer.kernels.loss import IGNORED
from anyformer.models.base import TransformerModule
from anyformer.models.call import Call, HeadInputs
from anyformer.objectives.examples import concatenate, text_of
from anyformer.parts.embedding.text import TextEmbedding
from anyformer.parts.head.base import HeadModule
from anyformer.parts.head.language import LMHeadModule
from anyformer.parts.head.pretraining import PretrainingModule
from anyformer.specs.part import Part

Record = dict[str, np.ndarray]  # 1-D (or 0-d) arrays of numbers by name
Batch = dict[str, Tensor]
H = TypeVar("H", bound=HeadModule)


class Objective(Part):
    """A training objective: turns raw examples into records, and gives the loss."""

    optional_columns: ClassVar[tuple[str, ...]] = ()  # fields that `encode` also reads where an example has them
    second_model: ClassVar[bool] = False  # it trains with another model: a teacher, a generator, an autoencoder
    command: ClassVar[str] = ""  # how a model that learned this is used: "run tag RUN TEXT" of the command line

    @property
    def columns(self) -> tuple[str, ...]:
        """The fields of a raw example that `encode` reads, so that a wrong column is reported before training."""
        return ("text",)

    @property
    def texts(self) -> tuple[str, ...]:
        """Those of them that hold texts, which a vocabulary can be made of."""
        return self.columns

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the scores."""
        return ()

    @property
    def extra_tokens(self) -> int:
        """How many token ids the model needs after those of the tokenizer, such as the codes of an autoencoder."""
        return 0

    @property
    def packs(self) -> bool:
        """Whether records are texts ("input_ids") that may be cut and packed into full rows with "document_ids"."""
        return False

    @property
    def truncates(self) -> int | None:
        """The number of tokens beyond which `encode` cuts a text. It is saved with the model, so that inference cuts
        there too."""
        return None

    @property
    def partners(self) -> int:
        """How many other records, drawn at random from the same split, `vary` gets after the generator."""
        return 0

    @property
    def draws(self) -> bool:
        """Whether a batch gets "seeds" (B,), 63 random bits an example: for what `losses` draws on the device, where it
        would be too much for `vary`."""
        return False

    def reads(self, length: int) -> int:
        """How many tokens of text a packed row has where the model is to see rows of `length`."""
        return length

    def with_max_length(self, length: int) -> Self:
        """This objective for a model that sees no more than `length` tokens at once."""
        return self

    def ready(self, tokenizer: Any) -> Self:
        """This objective, knowing what it needs of the tokenizer. Once more changes nothing."""
        return self

    @property
    def source_fields(self) -> dict[str, Any]:
        """Fields for the `source` of the trained description: how examples were labelled, for tasks to do the same."""
        return {}

    def write_settings(self, folder: Path) -> Path | None:
        """Writes what a model needs beside its weights to read such examples, other than a tokenizer; where it is."""
        return None

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record | list[Record]:
        """The record of a raw example, or several (windows over a long text); ValueError says what is wrong with it.
        Where texts are packed, this is what `ids` says."""
        return {"input_ids": concatenate(self.ids(text_of(example, "text"), tokenizer))}

    def ids(self, text: str | LongText, tokenizer: Any) -> Iterator[list[int]]:
        """Where texts are packed: the tokens of one, a part at a time, as it may be longer than memory."""
        raise NotImplementedError

    def size(self, record: Record) -> int:
        """How many tokens of a record the model will see in a row."""
        return max((value.size for value in record.values()), default=0)

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        """The record as it is seen this time."""
        return record

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        """One padded batch: what the model takes, and what `losses` compares with."""
        raise NotImplementedError

    def module(self, model: TransformerModule) -> nn.Module:
        """The trained module: the model, or a module around it that trains others with it (a generator). ValueError
        where the model does not fit this objective."""
        return model

    def initialize(self, model: TransformerModule) -> None:
        """Called once for a model that was built from its description, before it is trained (weights of a teacher)."""

    def before_step(self, trained: Any, step: int) -> None:
        """Called before each training step, for values that depend on its number (a falling temperature)."""

    def weights(self, batch: Batch) -> dict[str, float]:
        """How much each term counts here, known before the forward pass (default: the number of labels)."""
        return {"loss": num_labels(batch["labels"])}

    def losses(self, trained: Any, batch: Batch) -> dict[str, Tensor]:
        """Term -> its sum over the batch, with gradient; `trained` is what `module` gave. A term's factor (lambda) is
        part of its sum."""
        return self.judge(trained, batch, forward_to_head(trained, batch))

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        """The same from hidden states, so that wrapped objectives share one forward pass. The default is the loss of
        the model's own head."""
        terms = require_head(model).losses(states.x, states.ctx, states.inputs).values()
        return {"loss": torch.stack([term.sum for term in terms]).sum()}


class WithFrozenModel(nn.Module):
    """The trained model, and a frozen one that moves with it to other devices but is in no optimizer or checkpoint."""

    frozen: Any

    def __init__(self, model: TransformerModule, frozen: TransformerModule) -> None:
        super().__init__()
        self.model: Any = model
        self.__dict__["frozen"] = frozen.eval().requires_grad_(False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> WithFrozenModel:
        self.__dict__["frozen"]._apply(fn, recurse)
        super()._apply(fn, recurse)
        return self


# -- batches ----------------------------------------------------------------------------------------------------------


def pad_rows(rows: Sequence[np.ndarray], value: int | float) -> Tensor:
    """1-D arrays of unequal lengths as (B, longest), filled up on the right."""
    width = max(len(row) for row in rows)
    if all(len(row) == width for row in rows):
        out = np.stack(rows)
    else:
        out = np.full((len(rows), width), value, dtype=rows[0].dtype)
        for i, row in enumerate(rows):
            out[i, : len(row)] = row
    tensor = torch.from_numpy(out)
    return tensor if tensor.is_floating_point() else tensor.long()


def pad_texts(records: Sequence[Record], pad: int) -> Batch:
    """ "input_ids" with "attention_mask" where rows differ in length, and "token_type_ids" where records have them."""
    rows = [record["input_ids"] for record in records]
    batch = {"input_ids": pad_rows(rows, pad)}
    T = batch["input_ids"].shape[1]
    lengths = torch.tensor([len(row) for row in rows])
    if int(lengths.min()) < T:
        batch["attention_mask"] = (torch.arange(T) < lengths[:, None]).long()
    if "token_type_ids" in records[0]:
        batch["token_type_ids"] = pad_rows([record["token_type_ids"] for record in records], 0)
    return batch


def scalars(records: Sequence[Record], name: str) -> Tensor:
    """(B,) of 0-d arrays."""
    tensor = torch.from_numpy(np.stack([record[name] for record in records]))
    return tensor.float() if tensor.is_floating_point() else tensor.long()


def num_labels(labels: Tensor) -> float:
    return float((labels != IGNORED).sum())


# -- models -----------------------------------------------------------------------------------------------------------


def language_head(model: TransformerModule) -> LMHeadModule:
    """The head that scores the vocabulary."""
    head = model.head.lm if isinstance(model.head, PretrainingModule) else model.head
    if not isinstance(head, LMHeadModule):
        raise ValueError(f"this objective predicts tokens, and the model has {describe_head(model)}")
    return head


def describe_head(model: TransformerModule) -> str:
    """The head of a model, as its description and its published class call it."""
    of = f" ({model.spec.architecture})" if model.spec.architecture else ""
    return f"{'no head' if model.head is None else type(model.spec.head).__name__}{of}"


def model_inputs(model: TransformerModule, batch: Batch) -> dict[str, Any]:
    """The inputs of a batch that the model takes, without segments where it has none. Where the head pools the last
    place of a row, as published, the pads go to the left."""
    inputs: dict[str, Any] = {name: batch[name] for name in model.inputs if name in batch}
    embedding = model.spec.embedding
    if not (isinstance(embedding, TextEmbedding) and embedding.segments):
        inputs.pop("token_type_ids", None)
    mask = inputs.get("attention_mask")
    pool = None if model.spec.head is None else model.spec.head.pool
    if mask is not None and pool is not None and pool.take == "end":
        order = mask.int().argsort(dim=-1, stable=True)
        moved = {name: inputs[name].gather(-1, order) for name in PER_TOKEN if name in inputs}
        inputs = {**inputs, **moved}
    return inputs


PER_TOKEN = ("input_ids", "attention_mask", "token_type_ids")


def forward_to_head(model: TransformerModule, batch: Batch) -> HeadInputs:
    """Runs the model on a batch up to its head."""
    return model.hidden_states(Call(model_inputs(model, batch), kernel=model.kernel))


def logits_of(model: TransformerModule, states: HeadInputs, name: str = "logits") -> Tensor:
    """The logits of the head in fp32."""
    return require_head(model).answer(states.x, states.ctx, states.inputs)[name].float()


def require_head(model: TransformerModule) -> HeadModule:
    if model.head is None:
        raise ValueError("this model has no head")
    return model.head


def head_of(model: TransformerModule, kind: type[H], what: str) -> H:
    if not isinstance(model.head, kind):
        wanted = f"{kind.__name__.removesuffix('Module')}Head"
        raise ValueError(f"{what} needs a model with a {wanted}; this one has {describe_head(model)}")
    return model.head
