"""Ways to pool a sequence to one vector, for `Pool.take`. A new way is a subclass of `Pooling`, in any file.

B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values
from anyformer.parts.attention.set_transformer import Seeds
from anyformer.parts.base import PartModule
from anyformer.runtime.context import Context, leading_pads
from anyformer.specs.field_types import Natural
from anyformer.specs.part import Part, Site

Pooled = Callable[[Tensor, Context, dict[str, Any]], Tensor]


class Pooling(Part, abstract=True):
    """Pools a sequence to one vector. Its module maps (x, ctx, inputs) to (B, D). A kind without parameters defines
    `pool` instead of `build`."""

    @property
    def pads_left(self) -> bool:
        """Whether padding must be on the left, because the last index is pooled."""
        return False

    @property
    def fill_token(self) -> int | None:
        """The token that fills each text up to the model's length, without a mask."""
        return None

    @property
    def padding_token(self) -> int | None:
        """The token id that it skips as padding, if it compares ids."""
        return None

    @property
    def one_row(self) -> bool:
        """Whether it pools only batches of one row."""
        return False

    def pool(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        """(B, T, D) -> (B, D)"""
        raise NotImplementedError

    def build(self, site: Site) -> nn.Module:
        return PoolingModule(self.pool)


class PoolingModule(nn.Module):
    def __init__(self, pool: Pooled) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        return self.pool(x, ctx, inputs)


def at_index(x: Tensor, index: Tensor | int) -> Tensor:
    """Return x (B, T, D) at one index per row: (B, D)."""
    return x[torch.arange(x.shape[0], device=x.device), index]


# -- padding is skipped ------------------------------------------------------------------------------------------------


class FirstToken(Pooling, called=("CLS", "CLS pooling", "class token pooling", "first")):
    """The first token that is not padding, such as BERT's [CLS]."""

    def pool(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        return x[:, 0] if ctx.tokens is None else at_index(x, ctx.tokens.int().argmax(-1))  # padding may be on the left


class LastToken(Pooling, called=("last token pooling", "last")):
    """The last token whose id is not `padding_token` (GPT-2's classifier)."""

    requires: ClassVar[tuple[str, ...]] = ("token ids",)

    padding_token: int | None = None  # a batch of several rows needs it

    @property
    def one_row(self) -> bool:
        return self.padding_token is None

    def pool(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        ids = inputs.get("decoder_input_ids", inputs.get("input_ids"))  # of an encoder-decoder, the decoder's
        if self.padding_token is None and x.shape[0] > 1:
            raise ValueError("a batch needs pad_token_id in the config to find each row's last token")
        if self.padding_token is None or ids is None:
            return x[:, -1]
        if ids.shape[1] != x.shape[1]:
            raise ValueError("give decoder_input_ids: this model pools the vector of the last token")
        index = torch.arange(ids.shape[1], device=x.device)
        return at_index(x, (index * (ids != self.padding_token)).argmax(-1))


class MeanTokens(Pooling, called=("mean pooling", "average pooling", "sentence embedding", "mean")):
    """The mean of all tokens that are not padding."""

    def pool(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        if ctx.tokens is None:
            return x.mean(1)
        real = ctx.tokens[..., None].to(x.dtype)
        return (x * real).sum(1) / real.sum(1).clamp(min=1)


# -- a token with a given id -------------------------------------------------------------------------------------------


class LastOccurrence(Pooling):
    """The last occurrence of `token` in the source (BART's end of text). Each text must contain it."""

    requires: ClassVar[tuple[str, ...]] = ("token ids",)

    token: int

    def pool(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
        if ids is None:
            raise ValueError(f"give input_ids: this model pools the vector of the last token {self.token}")
        matches = ids == self.token
        if can_read_values() and not bool(matches.any(-1).all()):
            raise ValueError(f"input_ids: each text needs the token {self.token}, whose vector is pooled")
        index = (torch.arange(ids.shape[1], device=x.device) * matches).argmax(-1)
        if ids.shape[1] != x.shape[1]:  # of an encoder-decoder: correct the index for the padding on the left
            index = index if mask is None else index - leading_pads(mask)[:, 0]
            index = index if ctx.tokens is None else index + leading_pads(ctx.tokens)[:, 0]
        return at_index(x, index.clamp(max=x.shape[1] - 1))


class FirstOccurrence(Pooling):
    """The first occurrence of `token` (CLIP's end of text), or the first token of a text that does not contain it."""

    requires: ClassVar[tuple[str, ...]] = ("token ids",)

    token: int

    def pool(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        return at_first_maximum(x, ctx, inputs, lambda ids: (ids == self.token).int())


class HighestId(Pooling):
    """The token with the highest id: in old CLIP vocabularies, the end of text."""

    requires: ClassVar[tuple[str, ...]] = ("token ids",)

    def pool(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        return at_first_maximum(x, ctx, inputs, lambda ids: ids)


def at_first_maximum(x: Tensor, ctx: Context, inputs: dict[str, Any], scores_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the vector (B, D) of the first token whose score is the highest of its text; scores are at least 0."""
    ids = inputs.get("input_ids")
    if ids is None:
        raise ValueError("give input_ids: this model pools the vector of the end-of-text token")
    scores = scores_of(ids)
    if ctx.tokens is not None:  # padding before the text may have the same id
        before = torch.arange(ids.shape[1], device=x.device) < leading_pads(ctx.tokens)
        scores = scores.masked_fill(before, -1)
    return at_index(x, scores.argmax(-1))


# -- padding is included -----------------------------------------------------------------------------------------------


class LastColumn(Pooling):
    """The vector at the last index, even if it is padding (XLNet, SigLIP)."""

    fill_token: int | None = None  # fills texts up to the model's length (SigLIP); None: padding is on the left (XLNet)

    @property
    def pads_left(self) -> bool:
        return self.fill_token is None

    def pool(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        return x[:, -1]


class MeanColumns(Pooling):
    """The mean of all vectors after the first `skip`, padding included (ImageGPT; CLIP's classifier skips the class
    token)."""

    skip: Natural = 0

    def pool(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        return x[:, self.skip :].mean(1)


# -- learned queries ---------------------------------------------------------------------------------------------------


class SeedPool(Pooling, called=("seed pooling",)):
    """Learned queries attend to the sequence, and their outputs are concatenated (the Set Transformer)."""

    seeds: Seeds

    def out_width(self, width: int) -> int:
        return width * self.seeds.count


class SeedPoolModule(PartModule, of=SeedPool):
    def __init__(self, part: SeedPool, site: Site) -> None:
        super().__init__()
        self.seeds = part.seeds.build(site.child("seeds"))

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        return self.seeds(x, ctx).flatten(1)
