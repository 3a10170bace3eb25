"""Additional outputs of mixtures of experts: router logits, balance losses, active parameters; MTP weights."""

from __future__ import annotations

import pytest
import torch
from catalogue import Case, cases, close, folder, is_encoder_decoder, make_inputs, ours, published, shared, spec_of
from safetensors.torch import load_file, save_file
from torch import Tensor

import anyformer as af
from anyformer import families
from anyformer.families.base.fields import UnknownFieldWarning
from anyformer.models import Call
from anyformer.parts.feedforward.balance import VariationBalance
from anyformer.parts.feedforward.routers import NoisyTopK

TYPES = ("mixtral", "switch_transformers", "deepseek_v2", "deepseek_v3")
ROUTED = [case for case in cases() if case.model_type in TYPES]


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("case", ROUTED, ids=lambda case: case.id)
def test_router_logits_and_losses(case: Case, padded: bool) -> None:
    inputs = make_inputs(case, labels=True, batch=3)
    if padded:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        inputs["attention_mask"][1, -5:] = 0
    with torch.no_grad():
        expected = published(case)[0](**inputs, output_router_logits=True)
        mine = shared(case)(**inputs, output_router_logits=True)
    seen = 0
    for name, value in expected.items():
        if isinstance(value, Tensor) and (name == "loss" or name.endswith(("aux_loss", "z_loss"))):
            close(mine[name], value, 2e-6)
            seen += 1
        elif "loss" in name and value is not None:
            assert float(mine[name]) == value == 0  # a stack with only sparse layers
        elif name.endswith("router_logits") and value:
            assert len(value) == len(mine[name])
            for a, b in zip(mine[name], value, strict=True):
                close(a, b)
            seen += 1
    assert seen


def test_the_balance_losses_reach_the_routers() -> None:
    case = next(case for case in ROUTED if case.architecture == "MixtralForCausalLM")
    model = ours(case)
    model(**make_inputs(case), output_router_logits=True).aux_loss.backward()
    assert all(layer.feedforward.op.router.weight.grad.abs().max() > 0 for layer in model.decoder.layers)
    # the context has the terms, for training on hidden states
    ctx = model.hidden_states(Call(make_inputs(case))).ctx
    assert len(ctx.losses["router_logits"]) == model.spec.decoder.depth
    with torch.no_grad():
        assert not model.hidden_states(Call(make_inputs(case))).ctx.losses


def test_another_router_is_one_value() -> None:
    case = next(case for case in ROUTED if case.architecture == "MixtralForCausalLM")
    spec = af.override(spec_of(case), {
        "decoder.layers.feedforward.op.router": NoisyTopK(top_k=2),
        "head.balance": VariationBalance(importance=0.1, load=0.1),
    })  # fmt: skip
    model = af.build(spec, seed=0).train()
    out = model(**make_inputs(case, labels=True), output_router_logits=True)
    assert out.aux_loss > 0 and out.loss.isfinite()
    out.loss.backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [("mixtral-8x7b", 46.7e9, 12.9e9), ("mixtral-8x22b", 141e9, 39e9), ("deepseek-v2", 236e9, 21e9),
     ("deepseek-v3", 671e9, 37e9)],
)  # fmt: skip
def test_total_and_active_parameters(name: str, total: float, active: float) -> None:
    counted = af.count(af.spec(name))
    assert abs(counted.parameters / total - 1) < 0.005 and abs(counted.active / active - 1) < 0.02


def test_dense_models_are_all_active() -> None:
    counted = af.count(af.spec("llama3.2-1b"))
    assert counted.active == counted.parameters


def test_the_layer_that_predicts_ahead_is_dropped(tmp_path) -> None:
    case = next(case for case in ROUTED if case.architecture == "DeepseekV3ForCausalLM")
    tensors = load_file(folder(case) / "model.safetensors")
    names = ("eh_proj.weight", "mlp.experts.0.up_proj.weight")
    tensors |= {f"model.layers.61.{name}": torch.zeros(2) for name in names}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder(case) / "config.json").read_text())
    _, report = af.load(tmp_path, strict=False)
    assert report.clean and len(report.dropped) == 2
    af.load(tmp_path)


def test_real_configs_are_read() -> None:
    """Fields in published files that transformers' classes do not have."""
    v3 = {"ep_size": 1, "moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
          "aux_loss_alpha": 0.001, "seq_aux": True, "num_nextn_predict_layers": 1, "pretraining_tp": 1,
          "rope_theta": 10000,
          "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32,
                           "beta_slow": 1, "original_max_position_embeddings": 4096},
          "max_position_embeddings": 163840}  # fmt: skip
    assert families.find("deepseek_v3").read(v3).replace(source={}) == af.spec("deepseek-v3").replace(note="")
    switch = {"d_ff": 3072, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "feed_forward_proj": "relu",
              "is_gated_act": False, "num_selected_experts": 1, "router_type": "tokens_masked", "n_positions": 512,
              "batch_prioritized_routing": False, "decoder_start_token_id": 0}  # fmt: skip
    read = families.find("switch_transformers").read(switch).replace(source={})
    assert read == af.spec("switch-base-8").replace(note="")
    for family, gone in (("deepseek_v3", {"topk_method": "greedy"}), ("deepseek_v3", {"moe_layer_freq": 2}),
                         ("switch_transformers", {"is_gated_act": True})):  # fmt: skip
        with pytest.warns(UnknownFieldWarning, match=next(iter(gone))):
            families.find(family).read(gone)
    for family, bad in (("deepseek_v3", {"head_dim": 7}), ("deepseek_v2", {"num_key_value_heads": 1})):
        with pytest.raises(ValueError, match=next(iter(bad))):
            families.find(family).read({**({"num_experts_per_tok": 2} if family == "deepseek_v2" else {}), **bad})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_router_computes_in_its_own_dtype(dtype: str) -> None:
    import transformers

    first = next(case for case in ROUTED if case.architecture == "SwitchTransformersForConditionalGeneration")
    case = Case(first.model_type, first.architecture, {**first.config, "router_dtype": dtype}, f"router-{dtype}")
    mine, inputs = shared(case), make_inputs(case)
    assert is_encoder_decoder(mine.spec)
    theirs = transformers.SwitchTransformersForConditionalGeneration.from_pretrained(folder(case))
    with torch.no_grad():
        close(mine(**inputs).logits, theirs(**inputs).logits)
        assert mine.encoder.layers[1].feedforward.op.router.weight.dtype == torch.float32
