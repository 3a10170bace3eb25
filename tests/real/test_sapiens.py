"""Sapiens [Prihoda et al. 2022]: a RoBERTa of antibodies, from fairseq's file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import anyformer as af

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.real

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
MASK = 24
# the variable region of pembrolizumab's heavy chain, the example of the package
CHAIN = (
    "QVQLVQSGVEVKKPGASVKVSCKASGYTFTNYYMYWVRQAPGQGLEWMGGINPSNGGTNF"
    "NEKFKNRVTLTTDSSTTTAYMELKSLQFDDTAVYYCARRDYRFDMGFDYWGQGTTVTVSS"
)


@pytest.fixture(scope="module")
def folder(fetched: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convert fairseq's names and training arguments to Hugging Face's."""
    source = fetched("sapiens==1.0.5") / "sapiens" / "models" / "v1"
    assert (source / "dict.txt").read_text().split()[::2] == list(RESIDUES)
    with torch.serialization.safe_globals([argparse.Namespace]):
        stored = torch.load(source / "checkpoint_vh.pt", weights_only=True, map_location="cpu")
    made, weights = stored["args"], stored["model"]
    names = {
        "decoder.sentence_encoder.embed_tokens.": "roberta.embeddings.word_embeddings.",
        "decoder.sentence_encoder.embed_positions.": "roberta.embeddings.position_embeddings.",
        "decoder.sentence_encoder.emb_layer_norm.": "roberta.embeddings.LayerNorm.",
        "decoder.sentence_encoder.layers.": "roberta.encoder.layer.",
        "decoder.lm_head.weight": "lm_head.decoder.weight",
        "decoder.lm_head.": "lm_head.",
        ".self_attn.q_proj.": ".attention.self.query.", ".self_attn.k_proj.": ".attention.self.key.",
        ".self_attn.v_proj.": ".attention.self.value.", ".self_attn.out_proj.": ".attention.output.dense.",
        ".self_attn_layer_norm.": ".attention.output.LayerNorm.", ".fc1.": ".intermediate.dense.",
        ".fc2.": ".output.dense.", ".final_layer_norm.": ".output.LayerNorm.",
    }  # fmt: skip

    def renamed(name: str) -> str:
        for old, new in names.items():
            name = name.replace(old, new)
        return name

    tensors = {renamed(name): weight.clone() for name, weight in weights.items()}
    tensors["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, made.encoder_embed_dim)
    target = tmp_path_factory.mktemp("sapiens")
    safetensors.torch.save_file(tensors, target / "model.safetensors")
    config = {
        "model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "vocab_size": 25, "hidden_act": "gelu",
        "hidden_size": made.encoder_embed_dim, "intermediate_size": made.encoder_ffn_embed_dim,
        "num_hidden_layers": made.encoder_layers, "num_attention_heads": made.encoder_attention_heads,
        "max_position_embeddings": made.max_positions + 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    }  # fmt: skip
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_91_of_120_masked_residues(folder: Path) -> None:
    ours: Any = af.load(folder)
    ids = torch.tensor([0, *(4 + RESIDUES.index(residue) for residue in CHAIN), 2])
    inside = torch.arange(1, 121)
    rows = ids.repeat(120, 1)
    rows[torch.arange(120), inside] = MASK
    with torch.no_grad():
        logits = ours(input_ids=rows).logits
        theirs = transformers.RobertaForMaskedLM.from_pretrained(folder)(input_ids=rows).logits
    assert float((logits - theirs).abs().max()) < 1e-4
    best = logits[torch.arange(120), inside, 4:MASK].argmax(-1) + 4
    assert int((best == ids[inside]).sum()) == 91
