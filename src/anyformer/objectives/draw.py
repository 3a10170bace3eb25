"""Text to image with discrete codes [Ramesh et al. 2021]: an autoencoder learns to compress images into codes, and a
decoder learns to predict the codes of an image after the tokens of its caption.

N codes per image, K size of the codebook, V size of the decoder's vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.kernels.loss import IGNORED
from anyformer.models import AutoencoderModel, AutoencoderModule, position_limit
from anyformer.models.base import TransformerModule
from anyformer.objectives import latents
from anyformer.objectives.batches import Batch, Record, pad_rows
from anyformer.objectives.heads import forward_to_head, language_head
from anyformer.objectives.images import Pictures
from anyformer.objectives.match import Captioned
from anyformer.objectives.objective import WithFrozenModel
from anyformer.specs.field_types import NonNegative, TwoOrMore


class Reconstruct(Pictures):
    """Column "image". Two terms: the mean squared error of the pixels, and `price` times the mean cost of a code (for
    DALL-E's codes: the KL divergence of their distribution from the uniform one, in nats)."""

    columns: ClassVar[tuple[str, ...]] = ("image",)

    price: NonNegative = 0.02

    def module(self, model: TransformerModule) -> nn.Module:
        if not isinstance(model, AutoencoderModule):
            raise ValueError(f"Reconstruct needs an AutoencoderModel, not {type(model.spec).__name__}")
        latents.check_autoencoder(self, model)
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        rows = float(len(batch["pixel_values"]))
        return {"pixels": rows, **({"price": rows} if self.price else {})}

    def losses(self, trained: Any, batch: Batch) -> dict[str, Tensor]:
        pixels = batch["pixel_values"]
        out = trained(pixel_values=pixels)
        error = (out[trained.spec.output_name].float() - pixels).square().flatten(1).mean(1).sum()
        return {"pixels": error, **({"price": self.price * out["price"].mean(1).sum()} if self.price else {})}


class NextImageToken(Captioned):
    """Columns "image" and "text" (see `Captioned`). One decoder with one vocabulary: the text tokens, followed by the
    codes of the autoencoder in the folder `vae`. A row is a caption padded to `length`, followed by the codes of its
    image. `text` and `image` are the factors of the mean losses of the caption tokens and of the codes."""

    second_model: ClassVar[bool] = True
    command: ClassVar[str] = "run draw RUN TEXT"

    vae: str
    length: TwoOrMore = 256
    text: NonNegative = 1 / 8
    image: NonNegative = 7 / 8
    tokens: int | None = None  # size of the text vocabulary, set by `ready`

    @property
    def extra_tokens(self) -> int:
        spec = latents.read_description(self, self.vae)
        latent: Any = spec.latent if isinstance(spec, AutoencoderModel) else None
        return latent.codes if latent is not None and latent.discrete else 0

    def ready(self, tokenizer: Any) -> Self:
        if tokenizer is None:
            raise ValueError("NextImageToken reads captions: it needs a vocabulary")
        latents.read_description(self, self.vae)
        return self.replace(tokens=len(tokenizer))

    def write_settings(self, folder: Path) -> Path:
        """Also save the autoencoder."""
        latents.copy_autoencoder(self.vae, folder)
        return super().write_settings(folder)

    def module(self, model: TransformerModule) -> nn.Module:
        return self.with_autoencoder(model, latents.load_autoencoder(self.vae))

    def with_autoencoder(self, model: TransformerModule, vae: TransformerModule) -> WithFrozenModel:
        language_head(model)
        if not isinstance(vae, AutoencoderModule) or not vae.spec.latent.discrete:
            raise ValueError(f"{self.vae}: not an autoencoder with discrete codes")
        latents.check_autoencoder(self, vae)
        K, N, V = vae.spec.latent.codes, math.prod(vae.spec.grid), model.spec.embedding.tokens.vocab_size
        if self.tokens is not None and self.tokens + K > V:
            raise ValueError(f"{self.tokens} tokens and {K} codes make {self.tokens + K} ids, but the model has {V}")
        if position_limit(model.spec) != self.length + N:
            raise ValueError(
                f"{self.length} caption tokens and {N} codes need {self.length + N} positions, but the model has "
                f"{position_limit(model.spec)}"
            )
        return WithFrozenModel(model, vae)

    def size(self, record: Record) -> int:
        return self.length

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        rows = [record["input_ids"] for record in records]
        ids = pad_rows([*rows, np.zeros(self.length, rows[0].dtype)], pad)[:-1]
        real = torch.arange(self.length) < torch.tensor([len(row) for row in rows])[:, None]
        return {**super().collate(records, pad), "input_ids": ids, "labels": torch.where(real, ids, IGNORED)}

    def weights(self, batch: Batch) -> dict[str, float]:
        words = float((batch["labels"][:, 1:] != IGNORED).sum())  # the first token is not predicted
        return {"text": words, "image": float(len(batch["labels"]))}

    def losses(self, trained: WithFrozenModel, batch: Batch) -> dict[str, Tensor]:
        model, vae = trained.model, trained.frozen
        codes = latents.codes(vae, batch["pixel_values"]).flatten(1)
        tokens = codes + model.spec.embedding.tokens.vocab_size - vae.spec.latent.codes
        words, ignored = batch["labels"], torch.full_like(batch["labels"], IGNORED)
        states = forward_to_head(model, {"input_ids": torch.cat((batch["input_ids"], tokens), dim=1)})
        terms = {
            "text": (self.text, torch.cat((words, torch.full_like(tokens, IGNORED)), dim=1)),
            "image": (self.image / tokens.shape[1], torch.cat((ignored, tokens), dim=1)),  # mean over the codes
        }
        head = language_head(model)
        return {name: factor * head.loss(states.x, states.ctx, labels).sum for name, (factor, labels) in terms.items()}
