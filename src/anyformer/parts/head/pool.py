"""Pooling of a sequence to one vector.

B batch, T tokens, D width.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.attention.set_transformer import Seeds
from anyformer.parts.norm import Norm
from anyformer.parts.unused import mark_unused
from anyformer.runtime.context import Context, leading_pads
from anyformer.specs.messages import quote
from anyformer.specs.part import Part, Site


class Pool(Part, called=("pooler", "mean pooling", "CLS", "CLS pooling", "average pooling", "sentence embedding")):
    """Pools a sequence to one vector: `take` selects it; norm, dense layer and activation follow. "first", "last" and
    "mean" skip padding; with `padding_token`, "last" is the last token that is not this one. "token": the last index
    of `token` in the source (BART's end of text); "mark": its first index, or 0 if the text does not contain it;
    "highest": the index of the highest id (CLIP). "end", "all" and "rest" include padding: the last vector, the mean
    of all vectors (ELECTRA), and the mean of all but the first. "seeds": learned queries attend to the sequence; their
    outputs are concatenated."""

    take: Literal["first", "last", "mean", "token", "mark", "highest", "end", "all", "rest", "seeds"] = "first"
    token: int | None = None  # for "token" and "mark"
    seeds: Seeds | None = None  # as in the Set Transformer
    norm: Norm | None = None  # of the selected vector
    unused_norm: bool = False  # checkpoints contain the norm, but it is not applied (CLIP's classifier)
    input_dropout: float = 0.0  # before the dense layer (RoBERTa)
    dense: bool = False
    activation: Activation = "identity"
    dropout: float = 0.0
    padding_token: int | None = None  # for "last"
    width: int | None = None  # of the dense layer's output; default: the model's

    @property
    def requires(self) -> tuple[str, ...]:
        return ("token ids",) if self.take in ("token", "mark", "highest", "last") else ()

    def check(self) -> None:
        if self.take in ("token", "mark") and self.token is None:
            raise ValueError(f"Pool.take is {quote(self.take)}: set `token` to a token id")
        if self.unused_norm and self.norm is None:
            raise ValueError("Pool.unused_norm needs a norm")
        if (self.take == "seeds") != (self.seeds is not None):
            raise ValueError(f"Pool.seeds is {self.seeds}, but take is {quote(self.take)}: set seeds and take='seeds'")
        if self.seeds is not None and self.seeds.count > 1 and not self.dense:
            raise ValueError(f"Pool.seeds: {self.seeds.count} vectors need a dense layer to become one; set dense=True")

    def build(self, site: Site) -> nn.Module:
        return PoolModule(self, site)


class PoolModule(nn.Module):
    def __init__(self, part: Pool, site: Site) -> None:
        super().__init__()
        self.part, width = part, site.width
        self.seeds = part.seeds.build(site.child("seeds")) if part.seeds else None
        pooled_width = width * (part.seeds.count if part.seeds else 1)
        self.norm = part.norm.build(site.child("norm", width=pooled_width)) if part.norm else None
        if self.norm is not None and part.unused_norm:
            mark_unused(self.norm)
        self.dense = nn.Linear(pooled_width, part.width or width) if part.dense else None
        self.activation = ACTIVATIONS[part.activation]

    def forward(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        """(B, T, D) -> (B, D)"""
        if self.seeds is not None:
            x = self.seeds(x, ctx).flatten(1)
        elif self.part.take == "first":
            # the first real token, which is not at index 0 if padding is on the left
            rows = torch.arange(x.shape[0], device=x.device)
            x = x[:, 0] if ctx.tokens is None else x[rows, ctx.tokens.int().argmax(-1)]
        elif self.part.take == "mean":
            if ctx.tokens is None:
                x = x.mean(1)
            else:
                real = ctx.tokens[..., None].to(x.dtype)
                x = (x * real).sum(1) / real.sum(1).clamp(min=1)
        elif self.part.take in ("end", "all", "rest"):
            x = x[:, -1] if self.part.take == "end" else x[:, int(self.part.take == "rest") :].mean(1)
        elif self.part.take in ("mark", "highest"):
            ids = inputs.get("input_ids")
            if ids is None:
                raise ValueError("give input_ids: this model pools the vector of the end-of-text token")
            scores = ids if self.part.take == "highest" else (ids == self.part.token).int()
            if ctx.tokens is not None:  # padding before the text may have the same id
                before = torch.arange(ids.shape[1], device=x.device) < leading_pads(ctx.tokens)
                scores = scores.masked_fill(before, -1)
            x = x[torch.arange(x.shape[0], device=x.device), scores.argmax(-1)]
        elif self.part.take == "token":
            x = x[torch.arange(x.shape[0], device=x.device), self.token_position(x, ctx, inputs)]
        else:
            x = x[torch.arange(x.shape[0], device=x.device), self.last_position(x, inputs)]
        if self.norm is not None and not self.part.unused_norm:
            x = self.norm(x)
        if self.training and self.part.input_dropout:
            x = F.dropout(x, self.part.input_dropout)
        if self.dense is not None:
            x = self.dense(x)
        x = self.activation(x)
        return F.dropout(x, self.part.dropout) if self.training and self.part.dropout else x

    def token_position(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Tensor:
        """Return the index in x of the source's last `token`. If source and x differ in length, the index is corrected
        for the padding on their left."""
        ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
        if ids is None:
            raise ValueError(f"give input_ids: this model pools the vector of the last token {self.part.token}")
        matches = ids == self.part.token
        if can_read_values() and not bool(matches.any(-1).all()):
            raise ValueError(f"input_ids: each text needs the token {self.part.token}, whose vector is pooled")
        index = (torch.arange(ids.shape[1], device=x.device) * matches).argmax(-1)
        if ids.shape[1] != x.shape[1]:
            index = index if mask is None else index - leading_pads(mask)[:, 0]
            index = index if ctx.tokens is None else index + leading_pads(ctx.tokens)[:, 0]
        return index.clamp(max=x.shape[1] - 1)

    def last_position(self, x: Tensor, inputs: dict[str, Any]) -> Tensor | int:
        """Return the index of the last token that is not padding, or -1 without ids."""
        ids = inputs.get("decoder_input_ids", inputs.get("input_ids"))  # of an encoder-decoder, the decoder's
        if self.part.padding_token is None:
            if x.shape[0] > 1:
                raise ValueError("a batch needs pad_token_id in the config to find each row's last token")
            return -1
        if ids is None:
            return -1
        if ids.shape[1] != x.shape[1]:
            raise ValueError("give decoder_input_ids: this model pools the vector of the last token")
        index = torch.arange(ids.shape[1], device=x.device)
        return (index * (ids != self.part.padding_token)).argmax(-1)
