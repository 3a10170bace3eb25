"""Pools: one vector per row."""

from __future__ import annotations

import pytest
import torch

import anyformer as af
from anyformer import families

TEXT = {
    "architectures": ["CLIPTextModel"], "vocab_size": 60, "hidden_size": 24, "intermediate_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize("end", [4, 2])  # 2: in old configs a text ends at its highest token id
@pytest.mark.parametrize("pad", [1, 4, 59])
def test_left_padding_does_not_change_the_vector_of_a_text(end: int, pad: int) -> None:
    model = af.build(families.find("clip_text_model").read({**TEXT, "eos_token_id": end}), seed=0).eval()
    text = torch.tensor([[7, 30, 12, 9, 4 if end == 4 else 59]])
    padded = torch.cat((torch.full((1, 3), pad), text), dim=1)
    alone = model(input_ids=text).pooler_output
    left_padded = model(input_ids=padded, attention_mask=torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])).pooler_output
    torch.testing.assert_close(left_padded, alone, atol=1e-5, rtol=1e-5)
