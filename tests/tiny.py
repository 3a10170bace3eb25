"""Tiny random models of four families, for tests of tools that work with any family, and a smaller BERT for texts of
bytes."""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer import families

CONFIGS = {
    "gpt2": {"n_layer": 2, "n_embd": 24, "n_head": 3, "vocab_size": 50, "n_positions": 32,
             "architectures": ["GPT2LMHeadModel"]},
    "llama": {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
              "intermediate_size": 40, "vocab_size": 50, "architectures": ["LlamaForCausalLM"]},
    "bert": {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40,
             "vocab_size": 50, "architectures": ["BertForMaskedLM"]},
    "t5": {"num_layers": 2, "d_model": 24, "d_kv": 8, "num_heads": 3, "d_ff": 40, "vocab_size": 50,
           "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0,
           "architectures": ["T5ForConditionalGeneration"]},
}  # fmt: skip
OTHERS = {"xlnet": {"n_layer": 2, "d_model": 24, "n_head": 3, "d_inner": 40, "vocab_size": 50,
                    "architectures": ["XLNetLMHeadModel"]}}  # fmt: skip


def model_of(family: str, depth: int = 2) -> torch.nn.Module:
    spec = families.find(family).read((CONFIGS | OTHERS)[family])
    stacks = [name for name in ("encoder", "decoder") if hasattr(spec, name)]
    model = af.build(af.override(spec, {f"{name}.depth": depth for name in stacks}), seed=0).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # including biases
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def inputs_of(family: str) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 50, (2, 9), generator=torch.Generator().manual_seed(2))
    return {"input_ids": ids} | ({"decoder_input_ids": ids[:, :5]} if family == "t5" else {})


def encoder(
    architecture: str = "BertForSequenceClassification", labels: tuple[str, ...] = (), **changes: Any
) -> af.parts.EncoderModel:
    """Return the description of a BERT with one layer, for a vocabulary of bytes."""
    return families.find("bert").read({
        "architectures": [architecture], "vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 64, "pad_token_id": 0,
        **({"id2label": {str(i): label for i, label in enumerate(labels)}} if labels else {}), **changes,
    })  # fmt: skip
