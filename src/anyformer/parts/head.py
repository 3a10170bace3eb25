"""What comes out: heads map the last hidden states to named outputs, with the loss where labels are given.

B batch, T tokens, D width, V vocabulary, C classes or choices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.context import Context
from anyformer.kernels.loss import IGNORED, linear_cross_entropy
from anyformer.mask import begins
from anyformer.part import Part, Sees, Site, farthest
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.balance import Balance
from anyformer.parts.labels import Loss, Problem, check_labels, class_loss, classification_loss
from anyformer.parts.norm import Norm
from anyformer.parts.pool import Pool
from anyformer.taps import Declared

Said = dict[str, Tensor]
Outputs = dict[str, Tensor | None]


class Head(Part):
    """`inputs` are the names it takes from the caller beside the hidden states."""

    inputs: ClassVar[tuple[str, ...]] = ()
    remembers: ClassVar[bool] = True  # a decoder alone returns a memory where nobody asked for it, as published


class HeadModule(nn.Module):
    unlisted: tuple[str, ...] = ()  # outputs that stand under their names alone, and not in a tuple of all

    def arrange(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """A chance to reshape the model's inputs before they are embedded."""
        return inputs

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Said:
        """What it says of the hidden states (B, T, D), whatever is asked of that."""
        raise NotImplementedError

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        return class_loss(logits, labels)

    def judge(self, said: Said, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        """The losses of an answer, term by term, where the inputs have labels for them."""
        labels = inputs.get("labels")
        return {} if labels is None else {"loss": self.label_loss(said["logits"], labels, ctx)}

    def losses(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        """The same of its own answer, for training."""
        return self.judge(self.answer(x, ctx, inputs), ctx, inputs)

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        said = self.answer(x, ctx, inputs)
        return {"loss": total(self.judge(said, ctx, inputs)), **said}


def total(terms: Mapping[str, Loss]) -> Tensor | None:
    """The sum of the terms' means: what published classes call the loss."""
    return torch.stack([term.mean for term in terms.values()]).sum() if terms else None


# -- language models --------------------------------------------------------------------------------------------------


class Transform(Part, sees="itself"):
    """norm(activation(dense(x))) before the vocabulary (BERT)."""

    activation: Activation
    norm: Norm
    width: int | None = None

    def build(self, site: Site) -> nn.Module:
        return TransformModule(self, site)


class TransformModule(nn.Module):
    def __init__(self, part: Transform, site: Site) -> None:
        super().__init__()
        width = part.width or site.width
        self.dense = nn.Linear(site.width, width)
        self.activation = ACTIVATIONS[part.activation]
        self.norm = part.norm.build(site.child("norm", width=width))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class LMHead(Head, sees="itself", called=("language model head", "unembedding")):
    """Scores over the vocabulary. `shift`: token t predicts token t + 1; otherwise labels stand where they belong."""

    inputs: ClassVar[tuple[str, ...]] = ("labels", "logits_to_keep")

    vocab_size: int
    bias: bool = False
    shift: bool = True
    transform: Transform | None = None
    scale: float | None = None  # of the hidden states before the scores (T5's tied 1 / sqrt(D))
    offset: bool = False  # a saved score a token, added at the end and never learned (BART's final_logits_bias)
    balance: Balance | None = None  # of experts: its losses are reported and added where router logits are asked for
    foreign: bool = False  # scores another vocabulary than the one that is read (MarianForCausalLM with two)
    idle_bias: bool = False  # a second bias that files hold and nothing reads, kept frozen (an untied BERT)

    def reaches(self) -> Sees | None:
        return farthest("itself", self.transform)

    def build(self, site: Site) -> nn.Module:
        return LMHeadModule(self, site)


class LMHeadModule(HeadModule):
    offset: Tensor | None

    def __init__(self, part: LMHead, site: Site) -> None:
        super().__init__()
        self.part = part
        self.transform = part.transform.build(site.child("transform")) if part.transform else None
        width = (part.transform.width if part.transform else None) or site.width
        self.out: Any = self.output(width)
        self.register_buffer("offset", torch.zeros(part.vocab_size) if part.offset else None)
        if part.idle_bias:
            self.idle = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(part.vocab_size), requires_grad=False)})

    def computed(self) -> dict[str, Callable[[], Tensor]]:
        """What a checkpoint may leave out."""
        return {"offset": lambda: torch.zeros(self.part.vocab_size)} if self.part.offset else {}

    def output(self, width: int) -> nn.Module:
        """From vectors of this width to scores."""
        return nn.Linear(width, self.part.vocab_size, bias=self.part.bias)

    def scores(self, x: Tensor) -> Tensor:
        if self.transform is not None:
            x = self.transform(x)
        scores = self.logits(x if self.part.scale is None else x * self.part.scale)
        return scores if self.offset is None else scores.add_(self.offset)  # in place: the largest tensor there is

    def logits(self, x: Tensor) -> Tensor:
        return self.out(x)

    def loss(self, x: Tensor, ctx: Context, labels: Tensor, smoothing: float = 0.0) -> Loss:
        """Over the labels that are not -100, for training: the scores are never held all at once. What balances experts
        is a mean over the tokens of this pass, and counts as often as there are labels."""
        if self.part.shift:
            labels = next_labels(labels, ctx)
        asked = labels != IGNORED
        number = asked.sum()
        balance: Tensor | float = 0.0
        if self.part.balance is not None and self.training and (terms := self.part.balance.terms(ctx)):
            balance = self.part.balance.total(terms) * number
        if x.is_cpu and not torch.compiler.is_compiling():  # other devices would wait for a size that depends on data
            x, labels = x[asked], labels[asked]
        if self.transform is not None:
            x = self.transform(x)
        if self.part.scale is not None:
            x = x * self.part.scale
        return Loss(self.cross_entropy(x, labels, smoothing) + balance, number)

    def cross_entropy(self, x: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """The sum over labels (...) that are not -100, of vectors (..., D)."""
        out = self.out
        weight, bias = out.effective() if hasattr(out, "effective") else out.weight, out.bias  # with an adapter or not
        if self.offset is not None:
            bias = self.offset if bias is None else bias + self.offset
        return linear_cross_entropy(x, weight, labels, bias, smoothing=smoothing)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Said:
        keep = inputs.get("logits_to_keep")
        if keep is not None and not (isinstance(keep, int) and keep == 0):
            x = x[:, -keep:] if isinstance(keep, int) else x[:, keep]
        logits = self.scores(x)
        if self.part.balance is None or not inputs.get("output_router_logits"):
            return {"logits": logits}
        terms = self.part.balance.terms(ctx)
        first = {name: terms.pop(name) for name in ("aux_loss",) if name in terms}
        return {**first, "logits": logits, **terms}  # as published

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        check_labels("labels", labels, tuple(logits.shape[:2]))
        return class_loss(logits, next_labels(labels, ctx) if self.part.shift else labels)

    def judge(self, said: Said, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        found = super().judge(said, ctx, inputs)
        if found and self.part.balance is not None and inputs.get("output_router_logits"):
            terms = {name: value for name, value in said.items() if name != "logits"}
            found["balance"] = Loss(self.part.balance.total(terms), 1.0)
        return found


class VocabularyOutput(Head):
    """Scores over the vocabulary under the name of hidden states, and no loss (FSMTModel)."""

    vocab_size: int

    def build(self, site: Site) -> nn.Module:
        return VocabularyOutputModule(LMHead(vocab_size=self.vocab_size), site)


class VocabularyOutputModule(LMHeadModule):
    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Said:
        return {"last_hidden_state": self.scores(x)}


def next_labels(labels: Tensor, ctx: Context) -> Tensor:
    """labels moved one to the left: each token's target is the next one, never another document's first."""
    after = F.pad(labels[:, 1:], (0, 1), value=-100)
    if ctx.documents is not None:
        after = after.masked_fill(F.pad(begins(ctx.documents)[:, 1:], (0, 1), value=True), -100)
    return after


class NextSentenceHead(Head):
    """Does B follow A? Two scores from the pooled first token."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)

    pool: Pool

    def build(self, site: Site) -> nn.Module:
        return ClassifyModule(self.pool, 2, True, "single_label_classification", site)


class PretrainingHead(Head):
    """BERT's two objectives at once: masked tokens and next sentence."""

    inputs: ClassVar[tuple[str, ...]] = ("labels", "next_sentence_label")
    output: ClassVar[str] = "seq_relationship_logits"

    lm: LMHead
    pool: Pool
    tokens_alone: bool = False  # the tokens' loss is given where no pair is labelled (BigBird); else there is none

    def build(self, site: Site) -> nn.Module:
        return PretrainingModule(self, site)


class SentenceOrderHead(PretrainingHead):
    """Masked tokens, and which of two pieces of a text came first [Lan et al. 2020]."""

    inputs: ClassVar[tuple[str, ...]] = ("labels", "sentence_order_label")
    output: ClassVar[str] = "sop_logits"


class PretrainingModule(HeadModule):
    tapped: ClassVar[Declared] = {"lm": None}

    lm: Any

    def __init__(self, part: PretrainingHead, site: Site) -> None:
        super().__init__()
        self.address = site.address
        self.pair_label, self.pair_output, self.tokens_alone = part.inputs[1], part.output, part.tokens_alone
        self.lm = part.lm.build(site.child("lm"))
        self.pool = part.pool.build(site.child("pool"))
        self.out = nn.Linear(site.width, 2)

    def related(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        """(B, 2)"""
        return self.out(self.pool(x, ctx, inputs))

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Said:
        logits = ctx.tap(self.address, "lm", self.lm.scores(x))
        return {"prediction_logits": logits, self.pair_output: self.related(x, ctx, inputs)}

    def judge(self, said: Said, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        labels, related = inputs.get("labels"), inputs.get(self.pair_label)
        if labels is None or (related is None and not self.tokens_alone):
            return {}
        found = {"masked": class_loss(said["prediction_logits"], labels)}
        if related is not None:
            found["next"] = class_loss(said[self.pair_output], related, self.pair_label)
        return found



# -- one answer a sequence --------------------------------------------------------------------------------------------


class PooledOutput(Head):
    """The hidden states and their pooled vector (BertModel)."""

    pool: Pool

    def build(self, site: Site) -> nn.Module:
        return PooledOutputModule(self, site)


class PooledOutputModule(HeadModule):
    def __init__(self, part: PooledOutput, site: Site) -> None:
        super().__init__()
        self.pool = part.pool.build(site.child("pool"))

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Said:
        return {"last_hidden_state": x, "pooler_output": self.pool(x, ctx, inputs)}


class ClassifyHead(Head, called=("sequence classification",)):
    """Scores of C classes for a sequence; `problem` is the kind of labels, guessed from them where it is None."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)

    num_labels: int
    pool: Pool
    bias: bool = True
    problem: Problem | None = None
    shares: bool = False  # rows of labels are then shares of each class, and one number a row is told as (B,) (DeBERTa)

    def build(self, site: Site) -> nn.Module:
        return ClassifyModule(self.pool, self.num_labels, self.bias, self.problem, site, self.shares)


class ClassifyModule(HeadModule):
    def __init__(
        self, pool: Pool, num_labels: int, bias: bool, problem: Problem | None, site: Site, shares: bool = False
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_labels, self.problem, self.shares = num_labels, problem, shares
        self.pool = pool.build(site.child("pool"))
        self.out = nn.Linear(pool.width or site.width, num_labels, bias=bias) if num_labels else nn.Identity()

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Said:
        return {"logits": self.out(self.pool(x, ctx, inputs))}

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        return classification_loss(logits, labels, self.problem, self.shares)

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        found = super().forward(x, ctx, inputs)
        if self.shares and found["loss"] is not None and self.problem is None and self.num_labels == 1:
            found["logits"] = None if found["logits"] is None else found["logits"].flatten()
        return found


class MultipleChoiceHead(Head):
    """One score a choice; inputs are (B, C, T) and every choice is read on its own."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)
    needs: ClassVar[tuple[str, ...]] = ("a row of tokens",)

    pool: Pool

    def build(self, site: Site) -> nn.Module:
        return MultipleChoiceModule(self, site)


class MultipleChoiceModule(HeadModule):
    def __init__(self, part: MultipleChoiceHead, site: Site) -> None:
        super().__init__()
        self.pool = part.pool.build(site.child("pool"))
        self.out = nn.Linear(site.width, 1)

    def arrange(self, inputs: dict[str, Any]) -> dict[str, Any]:
        tensors = {name: v for name, v in inputs.items() if isinstance(v, Tensor) and name != "labels"}
        memory = {name for name in tensors if name.startswith("encoder_")}  # once a row, for all its choices
        first = next((v for name, v in tensors.items() if name not in memory), None)
        if first is None or first.dim() < 3:
            raise ValueError("multiple choice reads inputs of shape (batch, choices, tokens)")
        count = first.shape[1]
        flat = {n: v.repeat_interleave(count, 0) if n in memory else v.flatten(0, 1) for n, v in tensors.items()}
        return {**inputs, **flat, "num_choices": count}

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Said:
        return {"logits": self.out(self.pool(x, ctx, inputs)).view(-1, inputs["num_choices"])}


# -- one answer a token -----------------------------------------------------------------------------------------------


class TagHead(Head, called=("token classification", "NER")):
    """Scores of C labels for each token."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)
    remembers: ClassVar[bool] = False

    num_labels: int
    dropout: float = 0.0
    counts_pads: bool = True  # their labels, where they are not -100; or they are ignored (XLM-R XL)
    bias: bool = True

    def build(self, site: Site) -> nn.Module:
        return TagModule(self, site.width)


class TagModule(HeadModule):
    def __init__(self, part: TagHead, width: int) -> None:
        super().__init__()
        self.dropout, self.counts_pads = part.dropout, part.counts_pads
        self.out = nn.Linear(width, part.num_labels, bias=part.bias)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Said:
        return {"logits": self.out(F.dropout(x, self.dropout) if self.training and self.dropout else x)}

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        if not self.counts_pads and ctx.tokens is not None:
            check_labels("labels", labels, tuple(logits.shape[:2]))
            labels = labels.masked_fill(~ctx.tokens.to(labels.device), IGNORED)
        return class_loss(logits, labels)


class SpanHead(Head, called=("question answering", "extractive QA")):
    """Scores of each token to begin and to end the answer."""

    inputs: ClassVar[tuple[str, ...]] = ("start_positions", "end_positions")
    remembers: ClassVar[bool] = False

    dropout: float = 0.0

    def build(self, site: Site) -> nn.Module:
        return SpanModule(site.width, self.dropout)


class SpanModule(HeadModule):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.out = nn.Linear(width, 2)

    def scores(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        """(B, T, 2)"""
        return self.out(F.dropout(x, self.dropout) if self.training and self.dropout else x)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Said:
        start, end = self.scores(x, ctx, inputs).unbind(-1)
        return {"start_logits": start.contiguous(), "end_logits": end.contiguous()}

    def judge(self, said: Said, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        names, found = ("start", "end"), {}
        if any(inputs.get(f"{name}_positions") is None for name in names):
            return {}
        for name in names:
            scores, places = said[f"{name}_logits"], inputs[f"{name}_positions"]
            T = scores.shape[1]  # answers outside the text are ignored
            half, weight = class_loss(scores, places.clamp(0, T), f"{name}_positions", ignored=T)
            found[name] = Loss(half / 2, weight)
        return found


class CTCHead(Head, called=("speech recognition",)):
    """Scores of each frame over the alphabet, trained over all alignments [Graves et al. 2006]."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)

    vocab_size: int
    blank: int = 0
    dropout: float = 0.0
    reduction: Literal["sum", "mean"] = "sum"
    zero_infinity: bool = False

    def build(self, site: Site) -> nn.Module:
        return CTCModule(self, site.width)


class CTCModule(HeadModule):
    def __init__(self, part: CTCHead, width: int) -> None:
        super().__init__()
        self.part = part
        self.out = nn.Linear(width, part.vocab_size)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Said:
        return {"logits": self.out(F.dropout(x, self.part.dropout) if self.training and self.part.dropout else x)}

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        each, lengths = self.each(logits, labels, ctx)
        if self.part.reduction == "sum":
            return Loss(each.sum(), 1.0)
        return Loss((each / lengths.clamp(min=1)).sum(), len(each))

    def each(self, logits: Tensor, labels: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """(B,) how unlikely each row of labels is, and how long it is."""
        check_labels("labels", labels, (logits.shape[0], labels.shape[-1] if labels.dim() == 2 else 1))
        if labels.numel() and int(labels.max()) >= self.part.vocab_size:
            raise ValueError(f"label {int(labels.max())} is outside the alphabet of {self.part.vocab_size}")
        B, T = logits.shape[:2]
        frames = torch.full((B,), T, device=logits.device) if ctx.tokens is None else ctx.tokens.sum(-1)
        kept = (labels >= 0) & (labels != self.part.blank)  # -100 or the blank pads the labels
        log_probs, lengths = logits.log_softmax(-1, dtype=torch.float32).transpose(0, 1), kept.sum(-1)
        each = F.ctc_loss(
            log_probs, labels.masked_select(kept), frames, lengths, blank=self.part.blank, reduction="none",
            zero_infinity=self.part.zero_infinity,
        )  # fmt: skip
        return each, lengths
