"""Weights in MXFP4 against transformers' own dequantisation, and gpt-oss checkpoints in both forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import anyformer as af
from anyformer.weights import mxfp4
from anyformer.weights.mxfp4 import MXFP4
from anyformer.weights.rules import Alternate, Rename

transformers = pytest.importorskip("transformers")
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

E, D, F = 3, 96, 10


def random_bytes(outputs: int, inputs: int, low: int = 0, high: int = 256, seed: int = 0) -> list[Tensor]:
    """Blocks and scales of E matrices."""
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (E, outputs, inputs // 32, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(low, high, (E, outputs, inputs // 32), dtype=torch.uint8, generator=generator)
    return [blocks, scales]


@pytest.mark.parametrize("plain", [Rename("~a", "x"), Alternate("~a", "x")], ids=["in order", "alternating"])
def test_random_bytes(plain: Rename) -> None:
    """All bytes and all scales, infinity and NaN included."""
    stored, shapes = random_bytes(F, D), [torch.Size((E, D, F))]
    expected = plain.load([convert_moe_packed_tensors(*stored)], shapes)[0]
    (found,) = MXFP4(plain).load(stored, shapes)
    assert found.dtype == expected.dtype == torch.bfloat16 and len(stored[1].unique()) > 70
    assert torch.equal(found.isnan(), expected.isnan()) and torch.equal(found.nan_to_num(), expected.nan_to_num())
    assert MXFP4(plain).sources == ("~a_blocks", "~a_scales") and not MXFP4(plain).written


def test_every_byte_and_every_scale() -> None:
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 1, 16)
    for scale in range(256):
        scales = torch.full((1, 16, 1), scale, dtype=torch.uint8)
        expected, found = convert_moe_packed_tensors(blocks, scales)[0].T, mxfp4.dequantize(blocks[0], scales[0])
        assert torch.equal(found.isnan(), expected.isnan()) and torch.equal(found.nan_to_num(), expected.nan_to_num())


def test_wrong_shapes_are_named() -> None:
    rule, stored = MXFP4(Rename("a", "x")), random_bytes(F, D)
    assert rule.misfits(stored, [torch.Size((E, D, F))]) == ["", ""]
    blocks, scales = rule.misfits(stored, [torch.Size((E, D, F + 1))])
    assert "(3, 10, 3, 16)" in blocks and "(3, 11, 3, 16)" in blocks and "(3, 11, 3)" in scales
    assert "torch.uint8" in rule.misfits([stored[0].float(), stored[1]], [torch.Size((E, D, F))])[0]
    assert all(rule.misfits(stored, [torch.Size((E, D - 1, F))]))  # 95 numbers do not fill blocks of 32


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Path]:
    """A tiny published gpt-oss whose experts are numbers of MXFP4; its folder in bf16 and its folder in MXFP4."""
    width, inner = 64, 32
    config = transformers.GptOssConfig(
        vocab_size=99, hidden_size=width, intermediate_size=inner, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=E, num_experts_per_tok=2, sliding_window=7,
        architectures=["GptOssForCausalLM"], dtype="bfloat16",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(config).to(torch.bfloat16).eval()
    packed: dict[str, Tensor] = {}
    for i, layer in enumerate(model.model.layers):
        experts = layer.mlp.experts
        for name, sizes in (("gate_up_proj", (2 * inner, width)), ("down_proj", (width, inner))):
            stored = random_bytes(*sizes, low=121, high=125, seed=i)
            getattr(experts, name).data.copy_(convert_moe_packed_tensors(*stored))
            address = f"model.layers.{i}.mlp.experts.{name}"
            packed |= {f"{address}_blocks": stored[0], f"{address}_scales": stored[1]}
        for bias in (experts.gate_up_proj_bias, experts.down_proj_bias, layer.self_attn.sinks):
            torch.nn.init.normal_(bias)
    plain, few_bits = (tmp_path_factory.mktemp(name) for name in ("bf16", "mxfp4"))
    model.save_pretrained(plain)
    tensors = {name: t for name, t in load_file(plain / "model.safetensors").items() if f"{name}_blocks" not in packed}
    save_file({**tensors, **packed}, few_bits / "model.safetensors", {"format": "pt"})
    content = json.loads((plain / "config.json").read_text())
    content["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]}
    (few_bits / "config.json").write_text(json.dumps(content))
    return model, plain, few_bits


@torch.no_grad()
def test_both_forms_load_and_both_are_exported_in_bf16(folders: Any, tmp_path: Path) -> None:
    model, plain, few_bits = folders
    first, second = af.load(plain), af.load(few_bits)
    assert first.dtype == second.dtype == torch.bfloat16 and first.spec == second.spec
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values()))
    ids = torch.arange(5, 30).view(1, -1)
    found, expected = second.float()(input_ids=ids).logits, model.float()(input_ids=ids).logits
    assert torch.allclose(found, expected, atol=1e-5)
    af.save(second.bfloat16(), tmp_path, format="hf")
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    written, published = load_file(tmp_path / "model.safetensors"), load_file(plain / "model.safetensors")
    assert written.keys() == published.keys()
    assert all(torch.equal(written[name].to(tensor.dtype), tensor) for name, tensor in published.items())
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).float().eval()
    assert torch.allclose(again(input_ids=ids).logits, expected, atol=1e-5)


def test_one_expert_is_dequantised_at_a_time(folders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading never has a second copy of all experts."""
    sizes, whole = [], mxfp4.dequantize
    monkeypatch.setattr(mxfp4, "dequantize", lambda blocks, scales: sizes.append(blocks.shape) or whole(blocks, scales))
    af.load(folders[2])
    assert {*sizes} == {(64, 2, 16), (64, 1, 16)} and len(sizes) == 2 * 2 * E


def test_missing_scales_are_named(folders: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folders[2] / "config.json").read_text())
    tensors = load_file(folders[2] / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.down_proj_scales"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"missing model\.layers\.1\.mlp\.experts\.down_proj .*down_proj_blocks"):
        af.load(tmp_path)
