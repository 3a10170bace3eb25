"""Vectors that are compared: one for a sequence, and how alike those of texts and of images are, or of videos, sounds
and texts.

B texts (or videos and sounds), I images, P texts a video, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values
from anyformer.parts.feedforward.balance import Balance
from anyformer.parts.head.base import Head, HeadModule, NamedTensors, Outputs
from anyformer.parts.head.losses import Loss
from anyformer.parts.head.pool import Pool
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind
from anyformer.specs.checks import at_least, positive
from anyformer.specs.part import Site


class ProjectionHead(Head, called=("projection", "CLIP projection")):
    """One vector of `width` numbers for a sequence, under its published name."""

    pool: Pool
    width: int
    name: Literal["text_embeds", "image_embeds", "video_embeds", "audio_embeds"] = "text_embeds"
    balance: Balance | None = None  # of experts: a loss beside that of the vectors, in training or where asked for

    def check(self) -> None:
        at_least(self, 1, "width")

    def build(self, site: Site) -> nn.Module:
        return ProjectionModule(self, site)


class ProjectionModule(HeadModule):
    def __init__(self, part: ProjectionHead, site: Site) -> None:
        super().__init__()
        self.name, self.balance = part.name, part.balance
        self.pool = part.pool.build(site.child("pool"))
        self.project = nn.Linear(site.width, part.width, bias=False)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        outputs = {self.name: self.project(self.pool(x, ctx, inputs)), "last_hidden_state": x}
        if self.balance is None or not (self.training or inputs.get("output_router_logits")):
            return outputs
        terms = self.balance.terms(ctx)
        return {**outputs, "aux_loss": self.balance.total(terms), **terms} if terms else outputs


class SimilarityHead(Head, sees="itself", called=("contrastive head", "CLIP", "contrastive loss")):
    """The cosine of every text with every image, times a learned factor whose logarithm starts at `scale`. The loss
    asks each text for its image among those of the batch, and each image for its text."""

    inputs: ClassVar[tuple[str, ...]] = ("return_loss",)
    requires: ClassVar[tuple[str, ...]] = ("two towers",)

    scale: float = 2.6592

    def build(self, site: Site) -> nn.Module:
        return SimilarityModule(self)


class SimilarityModule(nn.Module):
    def __init__(self, part: SimilarityHead) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(part.scale))
        self.starts = {"scale": part.scale}

    def forward(self, text: Tensor, image: Tensor, inputs: dict[str, Any]) -> Outputs:
        """(B, D) and (I, D) -> the scores both ways"""
        text, image = (x / x.norm(dim=-1, keepdim=True) for x in (text, image))
        scores = text @ image.t() * self.scale.exp()
        loss = self.loss(scores).mean if inputs.get("return_loss") else None
        return {
            "loss": loss,
            "logits_per_image": scores.t(),
            "logits_per_text": scores,
            "text_embeds": text,
            "image_embeds": image,
        }

    def loss(self, scores: Tensor) -> Loss:
        """(B, B), each text beside its own image"""
        if scores.shape[0] != scores.shape[1]:
            texts, images = scores.shape
            raise ValueError(f"a loss needs a text for each image, got {texts} and {images}")
        own = torch.arange(len(scores), device=scores.device)
        both = [F.cross_entropy(each.float(), own, reduction="sum") for each in (scores, scores.t())]
        return Loss((both[0] + both[1]) / 2, len(scores))


class SpacesHead(Head, sees="itself", called=("VATT", "MIL-NCE")):
    """Videos and sounds meet in one space, and what is there of a video goes on into a second of `width` numbers, where
    it meets texts [Akbari et al. 2021]. Of all pairs of a batch that have the video or the sound, its own is asked for;
    of several texts that stand near a video any may be right [Miech et al. 2020]."""

    inputs: ClassVar[tuple[str, ...]] = ("return_loss",)
    requires: ClassVar[tuple[str, ...]] = ("three towers",)

    width: int
    temperature: float = 0.07
    weight: float = 1.0  # of the texts' loss

    def check(self) -> None:
        at_least(self, 1, "width")
        at_least(self, 0, "weight")
        positive(self, "temperature")

    def build(self, site: Site) -> nn.Module:
        return SpacesModule(self, site)


class SpacesModule(nn.Module):
    def __init__(self, part: SpacesHead, site: Site) -> None:
        super().__init__()
        self.part = part
        self.project = nn.Linear(site.width, part.width)  # from the finer space into the coarser

    def forward(self, vectors: dict[str, Tensor], inputs: dict[str, Any]) -> Outputs:
        """Cosines over the temperature: of videos (B) with sounds (B), and with texts (B P)."""
        video = vectors["video"]
        sides = {"audio": video, "text": self.project(video)}
        found: Outputs = {"loss": None}
        for name, side in sides.items():
            if name in vectors:
                cosines = F.normalize(side, dim=-1) @ F.normalize(vectors[name], dim=-1).t()
                found[f"video_{name}_logits"] = cosines / self.part.temperature
        if inputs.get("return_loss"):
            found["loss"] = torch.stack([loss.mean for loss in self.losses(found).values()]).sum()
        return {**found, **{f"{name}_embeds": vector for name, vector in vectors.items()}}

    def losses(self, outputs: Outputs) -> dict[str, Loss]:
        """Of sounds and of texts, where there are."""
        weights = {"audio": 1.0, "text": self.part.weight}
        given = {name: outputs.get(f"video_{name}_logits") for name in weights}
        return {
            name: Loss(weights[name] * nearest_of_several(scores).sum(), float(len(scores)))
            for name, scores in given.items()
            if scores is not None
        }


def nearest_of_several(scores: Tensor) -> Tensor:
    """MIL-NCE: (B, B P), each video's own P candidates in a block -> (B,): how unlikely its own pairs are, all
    together, among all that have the video or one of the candidates."""
    B, candidates = scores.shape
    if candidates % B:
        raise ValueError(f"a loss needs as many for each video, got {candidates} for {B}")
    scores = scores.float().unflatten(1, (B, -1))  # (B, B, P)
    own = torch.eye(B, dtype=torch.bool, device=scores.device)[..., None]
    others = scores.transpose(0, 1).masked_fill(own, -torch.inf)  # who else a candidate could belong to
    right = scores.diagonal().t().logsumexp(-1)
    return torch.cat((scores, others), dim=-1).flatten(1).logsumexp(-1) - right


class HiddenSpansHead(Head, sees="itself", called=("MERLOT Reserve", "contrastive span training")):
    """What an encoder says where a span of text, or of sound, is hidden, beside what a small encoder says of the span
    itself: as `SimilarityHead`, each is asked for the other among all of its kind in the batch [Zellers et al. 2022].
    In the text a span that is hidden is the token `text`, or `audio`; what they hide is given in the same order."""

    inputs: ClassVar[tuple[str, ...]] = (
        "hidden_ids",
        "hidden_mask",
        "hidden_values",
        "return_loss",
    )
    input_kinds: ClassVar[Mapping[str, Kind]] = {
        "hidden_ids": "integers",
        "hidden_mask": "mask",
        "hidden_values": "floats",
    }
    requires: ClassVar[tuple[str, ...]] = ("hidden spans",)

    width: int
    text: int
    audio: int
    scale: float = 2.6592

    def check(self) -> None:
        at_least(self, 1, "width")
        at_least(self, 0, "text", "audio")
        if self.text == self.audio:
            raise ValueError(f"HiddenSpansHead.text and audio are both {self.text}: a place is for one of them")

    def build(self, site: Site) -> nn.Module:
        return HiddenSpansModule(self, site)


class HiddenSpansModule(nn.Module):
    def __init__(self, part: HiddenSpansHead, site: Site) -> None:
        super().__init__()
        self.part = part
        self.project = nn.Linear(site.width, part.width)
        self.compare = SimilarityModule(SimilarityHead(scale=part.scale))

    def forward(self, x: Tensor, ids: Tensor, spans: dict[str, Tensor], inputs: dict[str, Any]) -> Outputs:
        """x (B, T, D) of the tokens `ids` (B, T), and the vectors of what is hidden, (S, width) of each kind."""
        found: Outputs = {"loss": None, "last_hidden_state": x}
        for name, hidden in spans.items():
            token, count = getattr(self.part, name), len(hidden)
            here = (ids == token).flatten()
            if can_read_values() and (places := int(here.sum())) != count:
                raise ValueError(f"{count} spans of {name} are hidden, and the text has {places} of the tokens {token}")
            # the places in their order; their number is that of the spans, so that shapes do not depend on values
            guesses = self.project(x.flatten(0, 1)[here.int().argsort(descending=True, stable=True)[:count]])
            found[f"{name}_span_logits"] = self.compare(guesses, hidden, {})["logits_per_text"]
        if inputs.get("return_loss") and (terms := self.losses(found)):
            found["loss"] = torch.stack([loss.mean for loss in terms.values()]).sum()
        return found

    def losses(self, outputs: Outputs) -> dict[str, Loss]:
        """Of each kind of span that is hidden."""
        given = {name: outputs.get(f"{name}_span_logits") for name in ("text", "audio")}
        return {name: self.compare.loss(scores) for name, scores in given.items() if scores is not None}
