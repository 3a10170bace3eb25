"""Contrastive heads: one vector per sequence, and similarities of texts, images, videos and sounds.

B texts (or videos and sounds), I images, P texts per video, T tokens, S hidden spans, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values
from anyformer.parts.base import PartModule
from anyformer.parts.feedforward.balance import Balance
from anyformer.parts.head.base import Head, HeadModule, NamedTensors, Outputs
from anyformer.parts.head.losses import Loss, contrastive_loss
from anyformer.parts.head.pool import Pool
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind
from anyformer.specs.field_types import Count, Natural, NonNegative, Positive
from anyformer.specs.part import Site


class ProjectionHead(Head, called=("projection", "CLIP projection")):
    """Projects the pooled sequence to one vector, returned under its published name."""

    pool: Pool
    width: Count  # of the vector
    name: Literal["text_embeds", "image_embeds", "video_embeds", "audio_embeds"] = "text_embeds"
    balance: Balance | None = None  # load-balancing losses of experts, in training or with output_router_logits


class ProjectionModule(HeadModule, of=ProjectionHead):
    def __init__(self, part: ProjectionHead, site: Site) -> None:
        super().__init__()
        self.name, self.balance = part.name, part.balance
        self.pool = part.pool.build(site.child("pool"))
        self.project: nn.Module = nn.Linear(site.width, part.width, bias=False)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        outputs = {self.name: self.project(self.pool(x, ctx, inputs)), "last_hidden_state": x}
        if self.balance is None or not (self.training or inputs.get("output_router_logits")):
            return outputs
        terms = self.balance.terms(ctx)
        return {**outputs, "aux_loss": self.balance.total(terms), **terms} if terms else outputs


class SimilarityHead(Head, sees="itself", called=("contrastive head", "CLIP", "contrastive loss")):
    """Cosine of every text with every image, times a learned factor. The loss is the cross-entropy of each text over
    the images of the batch and of each image over the texts."""

    inputs: ClassVar[tuple[str, ...]] = ("return_loss",)
    requires: ClassVar[tuple[str, ...]] = ("two towers",)

    scale: float = 2.6592  # initial logarithm of the factor


class SimilarityModule(PartModule, of=SimilarityHead):
    def __init__(self, part: SimilarityHead, site: Site) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(part.scale))
        self.starts = {"scale": part.scale}

    def forward(self, text: Tensor, image: Tensor, inputs: dict[str, Any]) -> Outputs:
        """Score texts (B, D) against images (I, D), in both directions."""
        text, image = (x / x.norm(dim=-1, keepdim=True) for x in (text, image))
        scores = self.logits(text @ image.t())
        loss = self.loss(scores).mean if inputs.get("return_loss") else None
        return {
            "loss": loss,
            "logits_per_image": scores.t(),
            "logits_per_text": scores,
            "text_embeds": text,
            "image_embeds": image,
        }

    def loss(self, scores: Tensor) -> Loss:
        """Return the loss of scores (B, B), where text i belongs to image i."""
        if scores.shape[0] != scores.shape[1]:
            texts, images = scores.shape
            raise ValueError(f"return_loss needs one text per image, got {texts} texts and {images} images")
        return Loss(self.pair_loss_sum(scores), len(scores))

    def logits(self, cosines: Tensor) -> Tensor:
        return cosines * self.scale.exp()

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities of texts (..., B) for an image."""
        return logits.softmax(-1)

    def pair_loss_sum(self, scores: Tensor) -> Tensor:
        """Return the sum of the losses of B pairs, from scores (B, B)."""
        return contrastive_loss(scores)


class SpacesHead(Head, sees="itself", called=("VATT", "MIL-NCE")):
    """Compares videos with sounds in one space and, after a projection to `width`, with texts in a second space
    [Akbari et al. 2021]. The loss is contrastive over the batch; if a video has several texts, any of them may be the
    right one (MIL-NCE) [Miech et al. 2020]."""

    inputs: ClassVar[tuple[str, ...]] = ("return_loss",)
    requires: ClassVar[tuple[str, ...]] = ("three towers",)

    width: Count  # of the space of videos and texts
    temperature: Positive = 0.07
    weight: NonNegative = 1.0  # of the text loss


class SpacesModule(PartModule, of=SpacesHead):
    def __init__(self, part: SpacesHead, site: Site) -> None:
        super().__init__()
        self.part = part
        self.project = nn.Linear(site.width, part.width)  # from the space of sounds to the space of texts

    def forward(self, vectors: dict[str, Tensor], inputs: dict[str, Any]) -> Outputs:
        """Return cosines / temperature of B videos with B sounds, and with B P texts."""
        video = vectors["video"]
        spaces = {"audio": video, "text": self.project(video)}
        outputs: Outputs = {"loss": None}
        for name, projected in spaces.items():
            if name in vectors:
                cosines = F.normalize(projected, dim=-1) @ F.normalize(vectors[name], dim=-1).t()
                outputs[f"video_{name}_logits"] = cosines / self.part.temperature
        if inputs.get("return_loss"):
            outputs["loss"] = torch.stack([loss.mean for loss in self.losses(outputs).values()]).sum()
        return {**outputs, **{f"{name}_embeds": vector for name, vector in vectors.items()}}

    def losses(self, outputs: Outputs) -> dict[str, Loss]:
        """Return the losses of sounds and of texts, if given."""
        weights = {"audio": 1.0, "text": self.part.weight}
        given = {name: outputs.get(f"video_{name}_logits") for name in weights}
        return {
            name: Loss(weights[name] * nearest_of_several(scores).sum(), float(len(scores)))
            for name, scores in given.items()
            if scores is not None
        }


def nearest_of_several(scores: Tensor) -> Tensor:
    """MIL-NCE loss (B,) of scores (B, B P), where each video has a block of P candidates: the negative log-probability
    of the video's own pairs, summed, among all pairs with this video or one of its candidates."""
    B, candidates = scores.shape
    if candidates % B:
        raise ValueError(f"return_loss needs the same number of texts per video, got {candidates} for {B} videos")
    scores = scores.float().unflatten(1, (B, -1))  # (B, B, P)
    own = torch.eye(B, dtype=torch.bool, device=scores.device)[..., None]
    others = scores.transpose(0, 1).masked_fill(own, -torch.inf)  # the candidates' scores with other videos
    right = scores.diagonal().t().logsumexp(-1)
    return torch.cat((scores, others), dim=-1).flatten(1).logsumexp(-1) - right


class HiddenSpansHead(Head, sees="itself", called=("MERLOT Reserve", "contrastive span training")):
    """Contrasts the encoder's output at each hidden span of text or audio with a small encoder's vector of that span,
    as in `SimilarityHead`, among all spans of the same kind in the batch [Zellers et al. 2022]. In `input_ids`, the
    token `text` or `audio` replaces a hidden span; the hidden spans are given in the same order."""

    inputs: ClassVar[tuple[str, ...]] = ("hidden_ids", "hidden_mask", "hidden_values", "return_loss")
    input_kinds: ClassVar[Mapping[str, Kind]] = {
        "hidden_ids": "integers",
        "hidden_mask": "mask",
        "hidden_values": "floats",
    }
    requires: ClassVar[tuple[str, ...]] = ("hidden spans",)

    width: Count  # of the compared vectors
    text: Natural  # token id of a hidden text span
    audio: Natural  # token id of a hidden audio span
    scale: float = 2.6592  # initial logarithm of the cosines' factor

    def check(self) -> None:
        if self.text == self.audio:
            raise ValueError(f"HiddenSpansHead.text and audio are both {self.text}; they must be different tokens")


class HiddenSpansModule(PartModule, of=HiddenSpansHead):
    def __init__(self, part: HiddenSpansHead, site: Site) -> None:
        super().__init__()
        self.part = part
        self.project = nn.Linear(site.width, part.width)
        self.compare = SimilarityHead(scale=part.scale).build(site.child("compare"))

    def forward(self, x: Tensor, ids: Tensor, spans: dict[str, Tensor], inputs: dict[str, Any]) -> Outputs:
        """Compare x (B, T, D) at the tokens `ids` (B, T) with the hidden spans' vectors, (S, width) per kind."""
        outputs: Outputs = {"loss": None, "last_hidden_state": x}
        for name, hidden in spans.items():
            token, count = getattr(self.part, name), len(hidden)
            is_span = (ids == token).flatten()
            if can_read_values() and (tokens := int(is_span.sum())) != count:
                raise ValueError(
                    f"{count} spans of {name} are hidden, but the text has {tokens} tokens with id {token}"
                )
            # indices in order; cut to the number of spans, so shapes do not depend on values
            guesses = self.project(x.flatten(0, 1)[is_span.int().argsort(descending=True, stable=True)[:count]])
            outputs[f"{name}_span_logits"] = self.compare(guesses, hidden, {})["logits_per_text"]
        if inputs.get("return_loss") and (terms := self.losses(outputs)):
            outputs["loss"] = torch.stack([loss.mean for loss in terms.values()]).sum()
        return outputs

    def losses(self, outputs: Outputs) -> dict[str, Loss]:
        """Return the loss of each kind of hidden span."""
        given = {name: outputs.get(f"{name}_span_logits") for name in ("text", "audio")}
        return {name: self.compare.loss(scores) for name, scores in given.items() if scores is not None}
