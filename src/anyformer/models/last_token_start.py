"""Encoder-decoders that read the last token of the text first (fairseq)."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.models.encoder_decoder import EncoderDecoderModel, EncoderDecoderModule


class LastTokenStartModel(EncoderDecoderModel):
    """An encoder-decoder whose decoder reads the labels after their last token that is not padding, instead of after
    `start_token` [Ng et al. 2019]."""


class LastTokenStartModule(EncoderDecoderModule, of=LastTokenStartModel):
    def shift_right(self, labels: Tensor, documents: Tensor | None = None) -> Tensor:
        padding = self.spec.padding_token
        if padding is None:
            raise ValueError("labels without decoder_input_ids need pad_token_id in the config")
        if documents is not None:
            raise ValueError("packed documents need decoder_input_ids: this model starts each with its last token")
        labels = labels.masked_fill(labels == -100, padding)
        last = ((labels != padding).sum(-1, keepdim=True) - 1).clamp(min=0)
        return torch.cat((labels.gather(1, last), labels[:, :-1]), dim=1)
