"""torch.nn.Transformer and its stacks and layers: outputs, masks, gradients, and weights in both directions."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from catalogue import close
from torch import nn

import anyformer as af
from anyformer.families import torch_nn

WIDTH, LAYER = 24, {"d_model": 24, "nhead": 3, "dim_feedforward": 20, "batch_first": True}
KINDS = [
    {},
    {"norm_first": True},
    {"bias": False, "activation": "gelu"},
    {"norm_first": True, "bias": False, "layer_norm_eps": 1e-2, "activation": nn.SiLU(), "dropout": 0.0},
    {"activation": nn.GELU(approximate="tanh"), "dropout": 0.4, "layer_norm_eps": 1e-3},
]


def make(kind: str, options: dict[str, Any]) -> Any:
    options = {**LAYER, **options}
    torch.manual_seed(0)
    encoder_layer, decoder_layer = nn.TransformerEncoderLayer(**options), nn.TransformerDecoderLayer(**options)
    module: nn.Module
    match kind:
        case "whole":
            module = nn.Transformer(num_encoder_layers=2, num_decoder_layers=3, **options)
        case "encoder":
            module = nn.TransformerEncoder(encoder_layer, 2, enable_nested_tensor=False)
        case "encoder with norm":
            module = nn.TransformerEncoder(encoder_layer, 2, nn.LayerNorm(WIDTH, eps=1e-3), enable_nested_tensor=False)
        case "decoder":
            module = nn.TransformerDecoder(decoder_layer, 2, nn.LayerNorm(WIDTH))
        case "encoder layer":
            module = encoder_layer
        case _:
            module = decoder_layer
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval()


def outputs(kind: str, module: Any, model: Any, causal: bool = True, pads: bool = False) -> tuple[Any, Any]:
    """Return the outputs of both for the same source and target."""
    torch.manual_seed(1)
    source, target = torch.randn(2, 9, WIDTH), torch.randn(2, 7, WIDTH)
    hidden = torch.zeros(2, 9, dtype=torch.bool)
    hidden[1, 5:] = pads
    look = nn.Transformer.generate_square_subsequent_mask(7) if causal else None
    masks = {"memory_key_padding_mask": hidden, "tgt_mask": look, "tgt_is_causal": causal}
    if kind == "whole":
        theirs = module(source, target, src_key_padding_mask=hidden, **masks)
        mine = model(inputs_embeds=source, decoder_inputs_embeds=target, attention_mask=(~hidden).long())
    elif kind.startswith("encoder"):
        theirs = module(source, src_key_padding_mask=hidden)
        mine = model(inputs_embeds=source, attention_mask=(~hidden).long())
    else:
        theirs = module(target, source, **masks)
        mine = model(inputs_embeds=target, encoder_hidden_states=source, encoder_attention_mask=(~hidden).long())
    return theirs, mine.last_hidden_state


ALL = ["whole", "encoder", "encoder with norm", "decoder", "encoder layer", "decoder layer"]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: "-".join(map(str, options)) or "plain")
@pytest.mark.parametrize("kind", ALL)
def test_outputs_and_weights(kind: str, options: dict[str, Any], tmp_path) -> None:
    module = make(kind, options)
    model = torch_nn.load(module)
    for pads in (False, True):
        with torch.no_grad():
            theirs, mine = outputs(kind, module, model, pads=pads)
        if pads and kind.startswith("encoder"):  # torch.nn's fast path writes zeros at padding
            theirs, mine = theirs[:, :5], mine[:, :5]
        close(mine, theirs)
    state = torch_nn.export(model)
    assert state.keys() == module.state_dict().keys()
    for name, tensor in module.state_dict().items():
        assert torch.equal(state[name], tensor), name
    assert af.count(model.spec).parameters == sum(p.numel() for p in module.parameters())
    af.save(model, tmp_path)
    again = af.load(tmp_path)
    assert again.spec.replace(source={}) == model.spec
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), model.state_dict().values(), strict=True))


@pytest.mark.parametrize("kind", ["whole", "decoder"])
def test_a_decoder_that_sees_ahead(kind: str) -> None:
    module = make(kind, {})
    with torch.no_grad():
        close(*outputs(kind, module, torch_nn.load(module, causal=False), causal=False))


def test_gradients() -> None:
    module = make("whole", {"norm_first": True, "dropout": 0.0}).train()
    model = torch_nn.load(module).train()
    for out in outputs("whole", module, model):
        out.square().mean().backward()
    grads = copy.copy(model)
    grads.state_dict = lambda: {n: p.grad for n, p in model.named_parameters()}  # type: ignore[method-assign]
    exported = torch_nn.export(grads)
    for name, parameter in module.named_parameters():
        close(exported[name], parameter.grad)


def test_cached_steps() -> None:
    model = torch_nn.load(make("whole", {}))
    source, target = torch.randn(2, 9, WIDTH), torch.randn(2, 7, WIDTH)
    with torch.no_grad():
        full = model(inputs_embeds=source, decoder_inputs_embeds=target, use_cache=False).last_hidden_state
        for state in (model.new_state(), model.new_state(2, capacity=8)):
            for t in range(7):
                step = model(inputs_embeds=source, decoder_inputs_embeds=target[:, t : t + 1], past_key_values=state)
                close(step.last_hidden_state[:, 0], full[:, t])


@pytest.mark.parametrize("kind", ["whole", "encoder", "decoder"])
def test_initialisation_has_the_spread_of_torch(kind: str) -> None:
    options = {"d_model": 64, "nhead": 4, "dim_feedforward": 96}
    torch.manual_seed(0)
    module: nn.Module = nn.Transformer(num_encoder_layers=3, num_decoder_layers=3, **options)
    if kind == "encoder":
        module = nn.TransformerEncoder(nn.TransformerEncoderLayer(**options), 3, enable_nested_tensor=False)
    if kind == "decoder":
        module = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), 3)
    state = torch_nn.export(af.build(torch_nn.describe(module), seed=1))
    for name, tensor in module.state_dict().items():
        if tensor.dim() > 1:
            assert abs(float(state[name].abs().max() / tensor.abs().max()) - 1) < 0.02, name
        elif "linear" in name:
            assert abs(float(state[name].std() / tensor.std()) - 1) < 0.4, name
        else:
            assert torch.equal(state[name], tensor), name


def test_what_has_no_description_is_refused() -> None:
    with pytest.raises(ValueError, match="^activation .*lambda.* valid: ReLU"):
        torch_nn.describe(nn.TransformerEncoderLayer(8, 2, activation=lambda x: F.relu(x) + 1))
    with pytest.raises(ValueError, match="Linear"):
        torch_nn.describe(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="inputs_embeds"):
        torch_nn.load(nn.TransformerEncoderLayer(8, 2))(inputs_embeds=torch.zeros(1, 3, 7))
