"""What comes out: heads map the last hidden states to named outputs, with the loss where labels are given.

B batch, T tokens, D width, V vocabulary, C classes or choices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.context import Context, leading_pads
from anyformer.kernels.loss import IGNORED, linear_cross_entropy
from anyformer.part import Part, Sees, Site, farthest
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.balance import Balance
from anyformer.parts.labels import Problem, check_labels, class_loss, classification_loss, cross_entropy
from anyformer.parts.norm import Norm
from anyformer.taps import Declared

Outputs = dict[str, Tensor | None]


class Head(Part):
    """`inputs` are the names it takes from the caller beside the hidden states."""

    inputs: ClassVar[tuple[str, ...]] = ()


class HeadModule(nn.Module):
    def arrange(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """A chance to reshape the model's inputs before they are embedded."""
        return inputs

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        raise NotImplementedError


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


class LMHead(Head, sees="itself"):
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
        self.out = nn.Linear(width, part.vocab_size, bias=part.bias)
        self.register_buffer("offset", torch.zeros(part.vocab_size) if part.offset else None)
        if part.idle_bias:
            self.idle = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(part.vocab_size), requires_grad=False)})

    def computed(self) -> dict[str, Callable[[], Tensor]]:
        """What a checkpoint may leave out."""
        return {"offset": lambda: torch.zeros(self.part.vocab_size)} if self.part.offset else {}

    def scores(self, x: Tensor) -> Tensor:
        if self.transform is not None:
            x = self.transform(x)
        scores = self.out(x if self.part.scale is None else x * self.part.scale)
        return scores if self.offset is None else scores.add_(self.offset)  # in place: the largest tensor there is

    def loss_sum(self, x: Tensor, ctx: Context, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The summed loss of the labels that are not -100, for training: the scores are never held all at once. What
        balances experts is a mean over the tokens of this pass, and counts as often as there are labels."""
        if self.part.shift:
            labels = next_labels(labels, ctx)
        balance: Tensor | float = 0.0
        if self.part.balance is not None and self.training and (terms := self.part.balance.terms(ctx)):
            balance = self.part.balance.total(terms) * (labels != IGNORED).sum()
        if x.is_cpu and not torch.compiler.is_compiling():  # other devices would wait for a size that depends on data
            asked = labels != IGNORED
            x, labels = x[asked], labels[asked]
        if self.transform is not None:
            x = self.transform(x)
        if self.part.scale is not None:
            x = x * self.part.scale
        out: Any = self.out
        weight, bias = out.effective() if hasattr(out, "effective") else out.weight, out.bias  # with an adapter or not
        if self.offset is not None:
            bias = self.offset if bias is None else bias + self.offset
        return linear_cross_entropy(x, weight, labels, bias, smoothing=smoothing) + balance

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        keep, labels = inputs.get("logits_to_keep"), inputs.get("labels")
        if keep is not None and not (isinstance(keep, int) and keep == 0):
            x = x[:, -keep:] if isinstance(keep, int) else x[:, keep]
        logits = self.scores(x)
        loss = None
        if labels is not None:
            check_labels("labels", labels, tuple(logits.shape[:2]))
            loss = cross_entropy(logits, next_labels(labels, ctx) if self.part.shift else labels)
        if self.part.balance is None or not inputs.get("output_router_logits"):
            return {"loss": loss, "logits": logits}
        terms = self.part.balance.terms(ctx)
        loss = None if loss is None else loss + self.part.balance.total(terms)
        return {"loss": loss, "aux_loss": terms.pop("aux_loss", None), "logits": logits, **terms}  # as published


class VocabularyOutput(Head):
    """Scores over the vocabulary under the name of hidden states, and no loss (FSMTModel)."""

    vocab_size: int

    def build(self, site: Site) -> nn.Module:
        return VocabularyOutputModule(LMHead(vocab_size=self.vocab_size), site)


class VocabularyOutputModule(LMHeadModule):
    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        return {"last_hidden_state": self.scores(x)}


def next_labels(labels: Tensor, ctx: Context) -> Tensor:
    """labels moved one to the left: each token's target is the next one, never another document's first."""
    after = F.pad(labels[:, 1:], (0, 1), value=-100)
    if ctx.documents is not None:
        same = F.pad(ctx.documents[:, 1:] == ctx.documents[:, :-1], (0, 1), value=False)
        after = after.masked_fill(~same, -100)
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

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        logits, related = ctx.tap(self.address, "lm", self.lm.scores(x)), self.out(self.pool(x, ctx, inputs))
        labels, next_label, loss = inputs.get("labels"), inputs.get(self.pair_label), None
        if labels is not None and next_label is not None:
            loss = cross_entropy(logits, labels) + cross_entropy(related, next_label, self.pair_label)
        elif labels is not None and self.tokens_alone:
            loss = cross_entropy(logits, labels)
        return {"loss": loss, "prediction_logits": logits, self.pair_output: related}


# -- one vector for a sequence ----------------------------------------------------------------------------------------


class Pool(Part):
    """Which vector speaks for the sequence, and what is done to it. `padding_token`: the last token is the last that
    is not this one. "token": the place where the source has `token` for the last time (BART's end of the text). "end"
    and "all" are the last place and the mean of all places, pads or not (ELECTRA's choices)."""

    take: Literal["first", "last", "mean", "token", "end", "all"] = "first"
    token: int | None = None
    input_dropout: float = 0.0  # before the dense layer (RoBERTa)
    dense: bool = False
    activation: Activation = "identity"
    dropout: float = 0.0
    padding_token: int | None = None
    width: int | None = None  # of the dense layer's output; the model's unless said

    @property
    def needs(self) -> tuple[str, ...]:
        return ("token ids",) if self.take in ("token", "last") else ()

    def build(self, site: Site) -> nn.Module:
        return PoolModule(self, site.width)


class PoolModule(nn.Module):
    def __init__(self, part: Pool, width: int) -> None:
        super().__init__()
        self.part = part
        self.dense = nn.Linear(width, part.width or width) if part.dense else None
        self.activation = ACTIVATIONS[part.activation]

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        """(B, T, D) -> (B, D)"""
        if self.part.take == "first":
            # the first real token: with pads on the left it does not stand at 0
            rows = torch.arange(x.shape[0], device=x.device)
            x = x[:, 0] if ctx.tokens is None else x[rows, ctx.tokens.int().argmax(-1)]
        elif self.part.take == "mean":
            if ctx.tokens is None:
                x = x.mean(1)
            else:  # pads do not count
                real = ctx.tokens[..., None].to(x.dtype)
                x = (x * real).sum(1) / real.sum(1).clamp(min=1)
        elif self.part.take in ("end", "all"):
            x = x[:, -1] if self.part.take == "end" else x.mean(1)
        elif self.part.take == "token":
            x = x[torch.arange(x.shape[0], device=x.device), self.marked(x, ctx, inputs)]
        else:
            x = x[torch.arange(x.shape[0], device=x.device), self.last(x, inputs)]
        if self.training and self.part.input_dropout:
            x = F.dropout(x, self.part.input_dropout)
        if self.dense is not None:
            x = self.dense(x)
        x = self.activation(x)
        return F.dropout(x, self.part.dropout) if self.training and self.part.dropout else x

    def marked(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        """The place in x of the last `token` of the source. Where one of the two is padded on its left and the other
        is not, the same place in their texts."""
        ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
        if ids is None:
            raise ValueError(f"give input_ids: the vector of a text is that of its last token {self.part.token}")
        found = ids == self.part.token
        if not torch.compiler.is_compiling() and not bool(found.any(-1).all()):
            raise ValueError(f"each text needs the token {self.part.token}, whose vector speaks for it")
        place = (torch.arange(ids.shape[1], device=x.device) * found).argmax(-1)
        if ids.shape[1] != x.shape[1]:
            place = place if mask is None else place - leading_pads(mask)[:, 0]
            place = place if ctx.tokens is None else place + leading_pads(ctx.tokens)[:, 0]
        return place.clamp(max=x.shape[1] - 1)

    def last(self, x: Tensor, inputs: dict[str, Any]) -> Tensor | int:
        """The rightmost token that is not padding; without ids to look at, the last of all."""
        ids = inputs.get("decoder_input_ids", inputs.get("input_ids"))  # of a pair, the decoder's
        if self.part.padding_token is None:
            if x.shape[0] > 1:
                raise ValueError("a batch needs pad_token_id in the config to find each row's last token")
            return -1
        if ids is None:
            return -1
        if ids.shape[1] != x.shape[1]:
            raise ValueError("give decoder_input_ids: the vector of a text is that of its last token")
        places = torch.arange(ids.shape[1], device=x.device)
        return (places * (ids != self.part.padding_token)).argmax(-1)


class PooledOutput(Head):
    """The hidden states and their pooled vector (BertModel)."""

    pool: Pool

    def build(self, site: Site) -> nn.Module:
        return PooledOutputModule(self, site)


class PooledOutputModule(HeadModule):
    def __init__(self, part: PooledOutput, site: Site) -> None:
        super().__init__()
        self.pool = part.pool.build(site.child("pool"))

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        return {"last_hidden_state": x, "pooler_output": self.pool(x, ctx, inputs)}


class ClassifyHead(Head):
    """Scores of C classes for a sequence; `problem` is the kind of labels, guessed from them where it is None."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)

    num_labels: int
    pool: Pool
    bias: bool = True
    problem: Problem | None = None

    def build(self, site: Site) -> nn.Module:
        return ClassifyModule(self.pool, self.num_labels, self.bias, self.problem, site)


class ClassifyModule(HeadModule):
    def __init__(self, pool: Pool, num_labels: int, bias: bool, problem: Problem | None, site: Site) -> None:
        super().__init__()
        self.num_labels, self.problem = num_labels, problem
        self.pool = pool.build(site.child("pool"))
        self.out = nn.Linear(pool.width or site.width, num_labels, bias=bias) if num_labels else nn.Identity()

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        logits, labels = self.out(self.pool(x, ctx, inputs)), inputs.get("labels")
        loss = None if labels is None else classification_loss(logits, labels, self.problem)
        return {"loss": loss, "logits": logits}


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
        first = inputs.get("input_ids") if inputs.get("input_ids") is not None else inputs.get("inputs_embeds")
        if first is None or first.dim() < 3:
            raise ValueError("multiple choice reads inputs of shape (batch, choices, tokens)")
        tensors = {name: v for name, v in inputs.items() if isinstance(v, Tensor) and name != "labels"}
        memory = {name for name in tensors if name.startswith("encoder_")}  # once a row, for all its choices
        count = first.shape[1]
        flat = {n: v.repeat_interleave(count, 0) if n in memory else v.flatten(0, 1) for n, v in tensors.items()}
        return {**inputs, **flat, "num_choices": count}

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        logits = self.out(self.pool(x, ctx, inputs)).view(-1, inputs["num_choices"])
        labels = inputs.get("labels")
        return {"loss": None if labels is None else class_loss(logits, labels), "logits": logits}


# -- one answer a token -----------------------------------------------------------------------------------------------


class TagHead(Head):
    """Scores of C labels for each token."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)

    num_labels: int
    dropout: float = 0.0

    def build(self, site: Site) -> nn.Module:
        return TagModule(self, site.width)


class TagModule(HeadModule):
    def __init__(self, part: TagHead, width: int) -> None:
        super().__init__()
        self.dropout = part.dropout
        self.out = nn.Linear(width, part.num_labels)

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        if self.training and self.dropout:
            x = F.dropout(x, self.dropout)
        logits, labels = self.out(x), inputs.get("labels")
        return {"loss": None if labels is None else cross_entropy(logits, labels), "logits": logits}


class SpanHead(Head):
    """Scores of each token to begin and to end the answer."""

    inputs: ClassVar[tuple[str, ...]] = ("start_positions", "end_positions")

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

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        start, end = self.scores(x, ctx, inputs).unbind(-1)
        loss, names = None, ("start_positions", "end_positions")
        if all(inputs.get(name) is not None for name in names):
            T = start.shape[1]  # answers outside the text are ignored
            losses = [
                class_loss(scores, inputs[name].clamp(0, T), name, ignored=T)
                for scores, name in zip((start, end), names, strict=True)
            ]
            loss = (losses[0] + losses[1]) / 2
        return {"loss": loss, "start_logits": start.contiguous(), "end_logits": end.contiguous()}


class CTCHead(Head):
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

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        if self.training and self.part.dropout:
            x = F.dropout(x, self.part.dropout)
        logits, labels, loss = self.out(x), inputs.get("labels"), None
        if labels is not None:
            check_labels("labels", labels, (logits.shape[0], labels.shape[-1] if labels.dim() == 2 else 1))
            if labels.numel() and int(labels.max()) >= self.part.vocab_size:
                raise ValueError(f"label {int(labels.max())} is outside the alphabet of {self.part.vocab_size}")
            B, T = logits.shape[:2]
            frames = torch.full((B,), T, device=x.device) if ctx.tokens is None else ctx.tokens.sum(-1)
            kept = (labels >= 0) & (labels != self.part.blank)  # -100 or the blank pads the labels
            log_probs = logits.log_softmax(-1, dtype=torch.float32).transpose(0, 1)
            loss = F.ctc_loss(
                log_probs, labels.masked_select(kept), frames, kept.sum(-1), blank=self.part.blank,
                reduction=self.part.reduction, zero_infinity=self.part.zero_infinity,
            )  # fmt: skip
        return {"loss": loss, "logits": logits}
