"""Families without a published class: a small config of each, models with random weights, and inputs.

Their outputs are compared with formulas in the test file of each family; what they share is in test_unpublished.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases.llava import IMAGE, TEXT
from catalogue import randomise
from torch import Tensor

import anyformer as af
from anyformer import families

SOUND = {
    "d_model": 12, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "num_mel_bins": 5,
    "max_source_positions": 3,
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "linformer": {
        "vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40,
        "max_position_embeddings": 66, "type_vocab_size": 1, "initializer_range": 0.3, "layer_norm_eps": 1e-5,
        "projected": 8, "sharing": "layerwise",
    },
    "dmca": {"vocab_size": 99, "d_model": 24, "num_heads": 3, "d_ff": 40, "block_size": 5},
    "etc": {
        "vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
        "max_position_embeddings": 64, "num_global_tokens": 3, "type_vocab_size": 3, "local_radius": 2,
        "relative_pos_max_distance": 4, "initializer_range": 0.5,
    },
    "conformer": {
        "d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 20, "num_mel_bins": 12,
        "subsampling_channels": 6, "conv_kernel_size": 4, "vocab_size": 11, "decoder_attention_heads": 2,
        "decoder_ffn_dim": 20,
    },
    "limoe": {
        "hidden_size": 24, "num_hidden_layers": 5, "num_expert_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 40, "num_experts": 4, "projection_dim": 10, "vocab_size": 60,
        "max_position_embeddings": 24, "image_size": 16, "patch_size": 4, "text_experts": 2, "image_experts": 3,
    },
    "vatt": {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40, "vocab_size": 60,
        "max_position_embeddings": 24, "num_frames": 4, "frame_step": 2, "image_size": 8, "patch_size": 4,
        "segment_size": 10, "num_segments": 12, "audio_space": 14, "text_space": 9,
    },
    "reserve": {
        "hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_image_layers": 1, "num_audio_layers": 1, "num_span_layers": 1, "vocab_size": 60, "projection_dim": 10,
        "max_position_embeddings": 64, "image_size": 8, "patch_size": 4, "segment_size": 10, "num_segments": 3,
    },
    "reka": {
        "text_config": TEXT, "vision_config": {**IMAGE, "image_size": 16}, "audio_config": SOUND,
        "image_token_index": 4, "audio_token_index": 3,
    },
}  # fmt: skip


def description(family: str, **more: Any) -> Any:
    return families.find(family).read({**SMALL[family], **more})


def model(family: str, **more: Any) -> Any:
    made = af.build(description(family, **more), seed=0).eval()
    randomise(made)
    return made


def text(length: int = 17, batch: int = 2) -> Tensor:
    return torch.randint(5, 99, (batch, length), generator=torch.Generator().manual_seed(length))


def sentences() -> dict[str, Tensor]:
    """Three global tokens, each with its own sentence, followed by the tokens of these sentences."""
    ids = torch.randint(1, 40, (2, 14), generator=torch.Generator().manual_seed(0))
    kinds = torch.tensor([[0, 1, 2, *[0] * 5, *[1] * 4, *[2] * 2], [0, 1, 2, *[0] * 2, *[1] * 3, *[2] * 6]])
    return {"input_ids": ids, "token_type_ids": kinds}


def frames() -> dict[str, Tensor]:
    return {"input_features": torch.randn(2, 44, 12, generator=torch.Generator().manual_seed(0))}


def pairs(batch: int = 3, length: int = 7) -> dict[str, Tensor]:
    """Texts and images."""
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(5, 60, (batch, length), generator=generator)
    return {"input_ids": ids, "pixel_values": torch.randn(batch, 3, 16, 16, generator=generator)}


def videos(batch: int = 3, candidates: int = 2) -> dict[str, Tensor]:
    """Videos with sound, and several texts for each."""
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(5, 60, (batch * candidates, 6), generator=generator)
    pixels = torch.randn(batch, 3, 4, 8, 8, generator=generator)
    return {"input_ids": ids, "pixel_values": pixels, "input_values": torch.randn(batch, 70, generator=generator)}


def clips() -> dict[str, Tensor]:
    """Two clips: a frame, words, a sound and a masked text; a frame, a masked sound, words, two masked texts."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    words = torch.randint(10, 60, (20,), generator=generator).tolist()
    rows = [[4] * 4 + words[:4] + [5] * 3 + [6], [4] * 4 + [7] + words[4:9] + [6, 6]]
    hidden = torch.tensor([[11, 12, 13], [14, 15, 0], [16, 0, 0]])
    return {
        "input_ids": torch.tensor(rows), "pixel_values": noise(2, 3, 8, 8), "input_values": noise(1, 30),
        "hidden_ids": hidden, "hidden_mask": (hidden > 0).long(), "hidden_values": noise(1, 30),
    }  # fmt: skip


def illustrated() -> dict[str, Tensor]:
    """An image of four patches and a sound of three vectors in the first text, only a sound in the second."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 60, (2, 14), generator=generator)
    ids[0, 1:5], ids[0, 7:10], ids[1, 3:6] = 4, 3, 3
    pixels = torch.randn(1, 3, 16, 16, generator=generator)
    return {"input_ids": ids, "pixel_values": pixels, "input_features": torch.randn(2, 5, 6, generator=generator)}


INPUTS: dict[str, Callable[[], dict[str, Tensor]]] = {
    "linformer": lambda: {"input_ids": text()}, "dmca": lambda: {"input_ids": text()}, "etc": sentences,
    "conformer": frames, "limoe": pairs, "vatt": videos, "reserve": clips, "reka": illustrated,
}  # fmt: skip
