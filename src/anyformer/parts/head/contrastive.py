"""wav2vec 2.0's objective: identify the code of a masked frame among negatives [Baevski et al. 2020].

B batch, T frames, N = B T, C channels of the stem, G groups of V codes each, K negatives, P projected width.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.head.base import Head, HeadModule, NamedTensors, Outputs
from anyformer.parts.head.losses import Loss
from anyformer.parts.init import Initializer, Normal, Uniform
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import check_shape
from anyformer.specs.field_types import Chance, Count, Positive
from anyformer.specs.part import Part, Site

PERPLEXITY, CODES = "codevector_perplexity", "codes"  # effective number of codes in use; code ids of each frame


class Quantizer(Part, sees="itself", called=("codebook", "product quantization")):
    """Maps each frame to one code per group: the most likely code, or in training a sample of the Gumbel softmax
    [Jang et al. 2017]."""

    groups: Count = 2
    codes: Count = 320  # per group
    width: Count = 256  # of the concatenated codes of all groups
    temperature: Positive = 2.0  # of the Gumbel softmax; a training loop may lower it

    def check(self) -> None:
        if self.width % self.groups:
            raise ValueError(f"Quantizer.width {self.width} is not a multiple of {self.groups} groups")


class QuantizerModule(PartModule, of=Quantizer):
    def __init__(self, part: Quantizer, site: Site) -> None:
        super().__init__()
        self.part, self.temperature = part, part.temperature
        self.choose = nn.Linear(site.width, part.groups * part.codes)
        self.codes = nn.Parameter(torch.empty(part.groups, part.codes, part.width // part.groups))
        self.starts = {"choose.weight": Normal(std=1.0), "codes": Uniform(low=0.0, high=1.0)}

    def forward(self, x: Tensor, counted: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Quantize x (B, T, C). Return codes (B, T, width), code ids (B, T, G) and the perplexity, from G to G V,
        over the frames in `counted` (B, T); None: all frames."""
        scores = self.choose(x).unflatten(-1, (self.part.groups, self.part.codes))
        if self.training:
            chosen = F.gumbel_softmax(scores.float(), tau=self.temperature, hard=True)
            share, numbers = scores.float().softmax(-1), chosen.argmax(-1)
        else:
            numbers = scores.argmax(-1)
            share = chosen = F.one_hot(numbers, self.part.codes).float()
        weights = share.new_ones(x.shape[:2]) if counted is None else counted.to(share.dtype)
        mean = torch.einsum("bt,btgv->gv", weights, share) / weights.sum()
        used = torch.exp(-torch.xlogy(mean, mean).sum(-1)).sum().to(x.dtype)
        codes = torch.einsum("btgv,gvd->btgd", chosen.to(x.dtype), self.codes.to(x.dtype))
        return codes.flatten(2), numbers, used


class ContrastHead(Head):
    """Contrastive loss on hidden frames: a frame's projected state must be closer (by cosine) to its own projected code
    than to the codes of other hidden frames. A diversity loss keeps many codes in use."""

    inputs: ClassVar[tuple[str, ...]] = ("sampled_negative_indices",)
    requires: ClassVar[tuple[str, ...]] = ("a waveform",)

    features: Count  # C
    quantizer: Quantizer = Quantizer()
    width: Count = 256  # P
    dropout: Chance = 0.0  # of the features before the quantizer
    temperature: Positive = 0.1  # of the cosines
    negatives: Count = 100  # K; the caller draws them (`draw_negatives`)
    diversity: float = 0.1  # weight of the diversity loss


class ContrastModule(HeadModule, of=ContrastHead):
    def __init__(self, part: ContrastHead, site: Site) -> None:
        super().__init__()
        self.part = part
        self.quantizer = part.quantizer.build(site.child("quantizer", width=part.features))
        self.states, self.targets = nn.Linear(site.width, part.width), nn.Linear(part.quantizer.width, part.width)
        self.starts: dict[str, Initializer] = {}
        for name, inputs in (("states", site.width), ("targets", part.quantizer.width)):
            uniform = Uniform(low=-(inputs**-0.5), high=inputs**-0.5)
            self.starts |= {f"{name}.weight": uniform, f"{name}.bias": uniform}

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        features, hidden = ctx.shared["extract_features"], inputs.get("mask_time_indices")
        if self.training and self.part.dropout:
            features = F.dropout(features, self.part.dropout)
        codes, numbers, used = self.quantizer(features, hidden)
        return {
            "projected_states": self.states(x),
            "projected_quantized_states": self.targets(codes),
            PERPLEXITY: used,
            CODES: numbers,
        }

    def judge(self, outputs: NamedTensors, ctx: Context, inputs: dict[str, Any]) -> dict[str, Loss]:
        hidden, others = inputs.get("mask_time_indices"), inputs.get("sampled_negative_indices")
        if others is None:
            return {}
        if hidden is None:
            raise ValueError("sampled_negative_indices need mask_time_indices, the hidden frames")
        states, targets, used = (outputs[n] for n in ("projected_states", "projected_quantized_states", PERPLEXITY))
        check_shape("sampled_negative_indices", others, (*states.shape[:2], others.shape[-1]))
        contrast = self.contrast(states, targets, outputs[CODES], hidden.bool(), others.long())
        diversity, number = self.part.diversity * self.diversity(used, hidden), hidden.sum()
        return {"contrast": Loss(contrast, number), "diversity": Loss(diversity, number)}

    def diversity(self, used: Tensor, hidden: Tensor) -> Tensor:
        """Return the share of unused codes times the number of hidden frames."""
        total = self.part.quantizer.groups * self.part.quantizer.codes
        return (total - used) / total * hidden.sum()

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Outputs:
        """As published, the losses are sums; `diversity_loss` is reported without its weight."""
        outputs = self.answer(x, ctx, inputs)
        terms = self.judge(outputs, ctx, inputs)
        del outputs[CODES]
        if not terms:
            return {**outputs}
        return {
            "loss": terms["contrast"].sum + terms["diversity"].sum,
            **outputs,
            "contrastive_loss": terms["contrast"].sum,
            "diversity_loss": self.diversity(outputs[PERPLEXITY], inputs["mask_time_indices"]),
        }

    def contrast(self, states: Tensor, targets: Tensor, numbers: Tensor, hidden: Tensor, others: Tensor) -> Tensor:
        """Return the summed cross-entropy of each hidden frame's own code against its negatives. `others` (B, T, K) are
        indices into the N frames of the batch; negatives with the same code are ignored."""
        N, own = hidden.numel(), torch.arange(hidden.numel(), device=states.device)[:, None]
        others = others.flatten(0, 1)
        states, targets = (F.normalize(each.flatten(0, 1).float(), dim=-1, eps=1e-8) for each in (states, targets))
        cosines = (states @ targets.t()).gather(1, torch.cat((own, others), dim=1)) / self.part.temperature
        numbers = numbers.view(N, -1)
        same = (numbers[others] == numbers[:, None]).all(-1)
        cosines = cosines.masked_fill(F.pad(same, (1, 0), value=False), -torch.inf)
        labels = torch.where(hidden.flatten(), 0, -100)
        return F.cross_entropy(cosines, labels, reduction="sum")


def draw_negatives(hidden: Tensor, count: int) -> Tensor:
    """Draw negatives for each frame, uniformly from the other hidden frames of its row. `hidden` is (B, T); returns
    indices (B, T, count) into the B T frames of the batch. Frames that are not hidden get their row's first frame."""
    B, T = hidden.shape
    order = (~hidden).int().argsort(dim=-1, stable=True)  # hidden frames first, in order
    number = hidden.sum(-1)[:, None, None]
    drawn = (torch.rand(B, T, count, device=hidden.device) * (number - 1).clamp(min=1)).long()
    rank = (hidden.cumsum(-1) - 1)[..., None]
    drawn = torch.where(drawn >= rank, drawn + 1, drawn).clamp(max=T - 1)
    negatives = order[:, None].expand(-1, T, -1).gather(-1, drawn)
    first = torch.arange(B, device=hidden.device)[:, None, None] * T
    return torch.where(hidden[..., None], negatives, 0) + first
