"""Linear attention and Performer instead of the attention of any stack: formulas, causality, decoding, padding,
packing, and no memory quadratic in the length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from catalogue import DECODER, ENCODER, all_hold, close, holds, holds_in_half_precision
from torch import Tensor

import anyformer as af
from anyformer import families
from anyformer.evaluate import invariants
from anyformer.evaluate.invariants import PADS
from anyformer.parts.attention.linear import (
    CHUNK,
    EluFeatures,
    Features,
    LinearAttention,
    OrthogonalRows,
    SoftmaxFeatures,
)
from anyformer.parts.mask import CAUSAL, FULL, Window
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerRow
from anyformer.specs.codec import encode
from anyformer.specs.part import Site
from small import nothing_grows_with_the_square_of_the_length

GPT2 = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 512, "vocab_size": 99, "initializer_range": 0.3,
        "embd_pdrop": 0.0, "resid_pdrop": 0.0, "architectures": ["GPT2LMHeadModel"]}  # fmt: skip
BERT = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 40, "vocab_size": 99,
        "initializer_range": 0.3, "architectures": ["BertForMaskedLM"]}  # fmt: skip
LONG = 2 * CHUNK + 37  # several chunks, the last one not full
FEATURES = {"elu": EluFeatures(), "softmax": SoftmaxFeatures(count=24)}
over_features = pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)


def decoder(features: Features, seed: int = 0, **config: Any) -> Any:
    spec = families.find("gpt2").read({**GPT2, **config})
    op = LinearAttention(num_heads=4, features=features, mask=CAUSAL)
    return af.build(af.override(spec, {"decoder.layers.attention.op": op}), seed=seed).eval()


def encoder(features: Features) -> Any:
    spec = families.find("bert").read(BERT)
    op = {"kind": "LinearAttention", "num_heads": 4, "features": encode(features)}
    return af.build(af.override(spec, {"encoder.layers.attention.op": op})).eval()


def text(length: int = LONG, batch: int = 2) -> Tensor:
    return torch.randint(5, 99, (batch, length), generator=torch.Generator().manual_seed(length))


def documents(lengths: tuple[int, ...], batch: int = 2) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).expand(batch, -1)


# -- formulas ----------------------------------------------------------------------------------------------------------


def layer(features: Features, mask: Any = FULL, width: int = 24, heads: int = 3, scale: float = 1.0) -> Any:
    op = LinearAttention(num_heads=heads, features=features, mask=mask)
    module = op.build(Site(width=width, address="here"))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            near = width**-0.5 * (scale if name[0] in "qk" else 1.0)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * near)
        for buffer in module.buffers():
            OrthogonalRows().fill(buffer, generator, 1)
    return module.eval()


def context(length: int, **more: Any) -> Context:
    return Context(index=torch.arange(length), positions=torch.arange(length)[None], **more)


@over_features
@pytest.mark.parametrize("mask", [FULL, CAUSAL], ids=["full", "causal"])
def test_the_formula_token_by_token(features: Features, mask: Any) -> None:
    module, x = layer(features, mask), torch.randn(1, LONG, 24, generator=torch.Generator().manual_seed(2))

    def phi(y: Tensor) -> Tensor:
        if isinstance(features, EluFeatures):
            return torch.where(y > 0, y + 1, y.exp())
        y = y / 8**0.25
        return torch.exp(y @ module.features.weight.double().T - (y * y).sum(-1, keepdim=True) / 2)

    with torch.no_grad():
        q, k, v = (part(x)[0].view(LONG, 3, 8).transpose(0, 1).double() for part in (module.q, module.k, module.v))
        q, k = phi(q), phi(k)
        out = []
        for t in range(LONG):
            upto = t + 1 if mask is CAUSAL else LONG
            weights = (k[:, :upto] @ q[:, t, :, None])[..., 0]
            out.append((weights[..., None] * v[:, :upto]).sum(1) / weights.sum(1, keepdim=True))
        expected = module.o(torch.stack(out).flatten(1)[None].float())
        for kernel in ("auto", "eager"):
            close(module(x, context(LONG, kernel=kernel)), expected)


@pytest.mark.parametrize("mask", [FULL, CAUSAL], ids=["full", "causal"])
def test_features_come_near_softmax_as_they_grow(mask: Any) -> None:
    x = torch.randn(2, 60, 24, generator=torch.Generator().manual_seed(2))
    errors = []
    for count in (8, 64, 512, 4096):
        module = layer(SoftmaxFeatures(count=count), mask, scale=0.4)
        with torch.no_grad():
            q, k, v = (module.heads(part(x)) for part in (module.q, module.k, module.v))
            exact = F.scaled_dot_product_attention(q, k, v, is_causal=mask is CAUSAL)
            exact = module.o(exact.transpose(1, 2).flatten(2))
            errors.append(float((module(x, context(60)) - exact).norm() / exact.norm()))
    # the error falls with the square root of their number
    assert errors[0] > 1.8 * errors[1] > 3.6 * errors[2] > 7.2 * errors[3] and errors[3] < 0.03, errors


def test_features_are_drawn_from_the_seed_and_saved(tmp_path) -> None:
    model = decoder(SoftmaxFeatures(count=20), seed=3)
    name = "decoder.layers.1.attention.op.features.weight"
    rows = model.state_dict()[name]
    assert rows.shape == (20, 8) and name not in dict(model.named_parameters())
    for start in (0, 8, 16):  # blocks of the head width are orthogonal
        block = rows[start : start + 8]
        inner = block @ block.T
        close(inner, torch.diag(inner.diagonal()), 1e-5)
    assert torch.equal(rows, decoder(SoftmaxFeatures(count=20), seed=3).state_dict()[name])
    assert not torch.equal(rows, decoder(SoftmaxFeatures(count=20), seed=4).state_dict()[name])
    assert not torch.equal(rows, model.state_dict()[name.replace(".1.", ".0.")])
    many = torch.empty(4096, 8)
    OrthogonalRows().fill(many, torch.Generator().manual_seed(0), 1)
    assert abs(float(many.square().sum(1).mean()) - 8) < 0.3 and abs(float(many.mean())) < 0.02
    af.save(model, tmp_path)
    again = af.load(tmp_path)
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[key]), key
    assert af.load(tmp_path, dtype="bfloat16").state_dict()[name].dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(again(input_ids=text()).logits, model(input_ids=text()).logits)


# -- instead of GPT-2's attention -------------------------------------------------------------------------------------


@over_features
def test_invariants(features: Features) -> None:
    ids, packing = text(), {"cuts": (0, 37, CHUNK + 67, CHUNK + 72, LONG)}  # documents begin and end within chunks
    found = all_hold(
        decoder(features), {"input_ids": ids}, {"labels": ids}, causality={"cuts": (9, CHUNK - 1, CHUNK, CHUNK + 70)},
        packing=packing, cached_decoding={"cuts": (0, 150, *range(151, 161), LONG)},
        padded_prompts={"pads": PADS, "published": True},
    )  # fmt: skip
    assert found == DECODER
    holds_in_half_precision(decoder(features), {"input_ids": ids})
    holds(invariants.check_packing, encoder(features), {"input_ids": ids}, **packing)
    ids = text(40)
    assert all_hold(encoder(features), {"input_ids": ids}, {"labels": ids}) == {*ENCODER, "packing"}


@over_features
def test_n5_a_row_that_sees_nothing_is_finite(features: Features) -> None:
    for model in (decoder(features), encoder(features)):
        ids = text(40)
        mask = torch.ones_like(ids)
        mask[0] = 0
        for model.kernel in ("eager", "sdpa"):
            model.zero_grad()
            out = model(input_ids=ids, attention_mask=mask, labels=ids)
            out.loss.backward()
            assert out.logits.isfinite().all() and all(p.grad.isfinite().all() for p in model.parameters())


@over_features
def test_n8_gradients_of_both_kernels(features: Features) -> None:
    ids, grads = text(), []
    model = decoder(features)
    for model.kernel in ("auto", "eager"):
        model.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, grad in grads[0].items():
        assert grad.abs().max() > 0 or name.endswith("k.bias"), name
        close(grads[1][name], grad)


@over_features
def test_a_state_has_a_fixed_size(features: Features) -> None:
    model, M = decoder(features), features.width(8)
    assert model.decoder.layers[0].attention.op.state_spec() == PerRow(
        {"sum": (4, M, 9), "power": (4, 1, 1)}, dtypes={"sum": torch.float32, "power": torch.float32}
    )
    state = model.new_state(2, capacity=LONG + 3)
    assert state.nbytes == af.count(model.spec).state(2, LONG) == 2 * 2 * 4 * (M * 9 + 1) * 4, "whatever the length"


@over_features
def test_cost_grows_with_the_length(features: Features) -> None:
    for model in (decoder(features, n_positions=5000), encoder(features)):
        stack = getattr(model, model.stack_name)
        nothing_grows_with_the_square_of_the_length(
            lambda length, stack=stack: stack(torch.randn(1, length, 32), context(length))[0]
        )


@over_features
def test_weights_are_shown_where_they_are_known(features: Features) -> None:
    model, ids = decoder(features), text(20)
    with torch.no_grad():
        plain, shown = model(input_ids=ids), model(input_ids=ids, output_attentions=True)
        close(shown.logits, plain.logits)
        for weights in shown.attentions:
            assert weights.shape == (2, 4, 20, 20)
            close(weights.sum(-1), torch.ones(2, 4, 20))
            assert not weights.triu(1).any() and bool((weights >= 0).all())
        with pytest.raises(ValueError, match="weights of cached tokens cannot be traced"):
            model(input_ids=ids[:, :1], past_key_values=plain.past_key_values, output_attentions=True)


def test_large_keys_stay_finite() -> None:
    """Keys whose features would overflow fp32 if they were not relative to the largest."""
    module = layer(SoftmaxFeatures(count=64), CAUSAL, scale=40.0)
    x = torch.randn(2, LONG, 24, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        for kernel in ("auto", "eager"):
            found = module(x, context(LONG, kernel=kernel))
            assert found.isfinite().all()
            close(found[:, :9], module(x[:, :9], context(9, kernel=kernel)))  # a later key does not hide earlier ones
            assert float((found - module.o.bias).abs().amax(-1).gt(1e-3).float().mean()) > 0.99, "they see something"


def test_refused() -> None:
    with pytest.raises(ValueError, match=r"LinearAttention.mask is .*Full\(\) or Causal\(\)"):
        LinearAttention(num_heads=2, mask=CAUSAL & Window(size=4))
    with pytest.raises(ValueError, match="LinearAttention.bias is 'qx'"):
        LinearAttention(num_heads=2, bias="qx")
    with pytest.raises(ValueError, match="SoftmaxFeatures.count is 0"):
        SoftmaxFeatures(count=0)
    with pytest.raises(ValueError, match="width 24 .* 5 heads"):
        layer(EluFeatures(), heads=5)
    state = decoder(EluFeatures()).new_state()
    with pytest.raises(ValueError, match="step by step"):
        layer(EluFeatures())(torch.randn(1, 3, 24), context(3, state=state))
