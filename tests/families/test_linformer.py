"""Linformer: no class is published. Oracles are its formula, and RoBERTa if the projection loses nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from catalogue import ENCODER, all_hold, close, holds_in_half_precision
from unpublished import SMALL, description, text

import anyformer as af
from anyformer import families
from small import nothing_grows_with_the_square_of_the_length

SHARING = ("none", "headwise", "key_value", "layerwise")
over_sharing = pytest.mark.parametrize("sharing", SHARING)


def model(sharing: str = "headwise", **more: Any) -> Any:
    return af.build(description("linformer", sharing=sharing, **more), seed=0).eval()


@over_sharing
def test_a_projection_that_loses_nothing_is_plain_attention(sharing: str) -> None:
    """With k = T and identity projections, it equals RoBERTa with the same weights."""
    mine = model(sharing, projected=64)
    config = {**SMALL["linformer"], "architectures": ["RobertaForMaskedLM"]}
    plain = af.build(families.find("roberta").read(config)).eval()
    with torch.no_grad():
        state = mine.state_dict()
        plain.load_state_dict({name: tensor for name, tensor in state.items() if "project" not in name})
        for name, tensor in state.items():
            if "project" in name:
                tensor.copy_(torch.eye(64).expand_as(tensor))
        ids = text(64)
        close(mine(input_ids=ids).logits, plain(input_ids=ids).logits)
        ours, theirs = (m(input_ids=ids, output_attentions=True).attentions for m in (mine, plain))
        for a, b in zip(ours, theirs, strict=True):
            close(a, b)


@over_sharing
def test_the_formula(sharing: str) -> None:
    """softmax(Q_i (E_i K_i)^T / sqrt(K)) F_i V_i, head by head."""
    mine = model(sharing)
    x = torch.randn(2, 17, 24, generator=torch.Generator().manual_seed(1))
    first: Any = mine.encoder.layers[0].attention.op
    for layer in mine.encoder.layers:
        op: Any = layer.attention.op
        found = {}
        hook = op.register_forward_hook(lambda module, inputs, out, found=found: found.update(x=inputs[0], out=out))
        mine(inputs_embeds=x)
        hook.remove()
        shared = (first if sharing == "layerwise" else op).project if sharing in ("key_value", "layerwise") else None
        E, F_ = (op.project_k, op.project_v) if shared is None else (shared, shared)
        q, k, v = (part(found["x"]).split(8, dim=-1) for part in (op.q, op.k, op.v))
        heads = []
        for i in range(3):
            e, f = (t[i, :, :17] if t.dim() == 3 else t[:, :17] for t in (E, F_))
            weights = (q[i] @ (e @ k[i]).transpose(1, 2) / math.sqrt(8)).softmax(-1)
            assert weights.shape == (2, 17, 8)
            heads.append(weights @ (f @ v[i]))
        close(found["out"], op.o(torch.cat(heads, dim=-1)))


def test_what_sharing_saves() -> None:
    each, counts = 8 * 64, [af.count(description("linformer", sharing=sharing)).parameters for sharing in SHARING]
    bare = counts[1] - 3 * 2 * each
    assert [(n - bare) // each for n in counts] == [3 * 2 * 3, 3 * 2, 3, 1]
    deeper = af.override(description("linformer", sharing="layerwise"), {"encoder.depth": 5})
    assert sum("project" in name for name in af.build(deeper).state_dict()) == 1


@over_sharing
def test_invariants(sharing: str) -> None:
    mine, ids = model(sharing), text()
    assert all_hold(mine, {"input_ids": ids}, {"labels": ids}) == ENCODER
    holds_in_half_precision(model(sharing, initializer_range=0.1), {"input_ids": ids})
    mask = torch.ones_like(ids)
    mask[0] = 0  # every token of this row is masked
    mine(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
    assert all(p.grad.isfinite().all() for p in mine.parameters())
    padded = F.pad(ids, (0, 32), value=1)  # without a mask, padding is text
    with torch.no_grad():
        assert not torch.allclose(mine(input_ids=padded).logits[:, :17], mine(input_ids=ids).logits, atol=1e-3)


def test_cost_grows_with_the_length() -> None:
    mine = model(max_position_embeddings=5000)
    nothing_grows_with_the_square_of_the_length(lambda length: mine(input_ids=text(length, 1)).logits)


def test_named() -> None:
    spec = af.spec("linformer-base")
    op = spec.encoder.layers.steps["attention"].op
    assert (spec.width, spec.encoder.depth, op.length, op.projected, op.sharing) == (768, 12, 512, 256, "layerwise")
    assert af.count(spec).parameters == af.count(af.spec("roberta-base")).parameters + 256 * 512
