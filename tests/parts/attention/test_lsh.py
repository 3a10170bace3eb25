"""LSH attention against transformers' Reformer, and with own_bucket against its formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

import anyformer as af
from anyformer import families
from anyformer.parts.attention.lsh import LSHAttention
from anyformer.specs.part import Site
from small import Weights, close, context, filled, numbers
from tiny import CONFIGS

D, H, K = 12, 2, 5
OP = "decoder.layers.attention.op"


def module_of(seed: int = 0, dtype: torch.dtype = torch.float32, **fields: Any) -> Any:
    part = LSHAttention(**{"num_heads": H, "head_width": K, "chunk": 4, "rounds": 2, "buckets": (4,), **fields})
    module = filled(part.build(Site(width=D, address="here")), seed).to(dtype)
    torch.manual_seed(seed)
    module.rotations.copy_(torch.randn(module.rotations.shape, dtype=dtype))  # as transformers draws them
    return module


@pytest.mark.parametrize("length", [16, 13, 3])
@pytest.mark.parametrize("fields", [
    {}, {"causal": True}, {"rounds": 1, "after": 1}, {"rounds": 3, "before": 2, "buckets": (2, 4)},
    {"causal": True, "rounds": 1, "before": 0},
])  # fmt: skip
def test_published(fields: dict[str, Any], length: int) -> None:
    """With the same rotations, the results are the same. transformers reads rows of whole chunks, or shorter than one.
    In double precision, because a token that sees only itself has a score of -1e5: in fp32 the error is 5e-3."""
    module = module_of(seed=7, dtype=torch.float64, **fields)
    part, row = module.part, -(-length // 4) * 4 if length > 4 else length
    config = ReformerConfig(
        hidden_size=D, num_attention_heads=H, attention_head_size=K, lsh_attn_chunk_length=part.chunk, hash_seed=7,
        lsh_num_chunks_before=part.before, lsh_num_chunks_after=part.after, num_hashes=part.rounds,
        num_buckets=[*part.buckets] if len(part.buckets) > 1 else part.buckets[0], is_decoder=part.causal,
        attn_layers=["lsh"], lsh_attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs = LSHSelfAttention(config, layer_idx=0).eval().double()
    theirs.query_key.weight.data.copy_(module.qk.weight)
    theirs.value.weight.data.copy_(module.v.weight)
    x, mask = numbers(3, row, D).double(), torch.arange(row) < length
    expected = module.o(theirs(x, attention_mask=mask.long().expand(3, -1)).hidden_states)[:, :length]
    close(module(x, context(row, is_token=mask.expand(3, -1)))[:, :length], expected, 1e-7)
    close(module(x[:, :length], context(length)), expected, 1e-7)
    close(module(x[:, :length], context(length, kernel="eager")), expected, 1e-7)


def by_hand(module: Any, x: torch.Tensor) -> torch.Tensor:
    """Token by token: in each round c * `before` tokens before it in its bucket, and c * `after` after it."""
    part, T = module.part, x.shape[1]
    q, v = (layer(x).unflatten(-1, (H, K)) for layer in (module.qk, module.v))
    k = q / (q.square().mean(-1, keepdim=True) + 1e-6).sqrt() / K**0.5
    out = torch.zeros(x.shape[0], T, H, K)
    for b, h, t in torch.cartesian_prod(torch.arange(x.shape[0]), torch.arange(H), torch.arange(T)).tolist():
        total = 0.0
        for r in range(part.rounds):
            turned = q[b, :, h] @ module.rotations[h, :, r]
            bucket = torch.cat((turned, -turned), -1).argmax(-1).tolist()
            members = [s for s in range(T) if bucket[s] == bucket[t]]
            at = members.index(t)
            near = members[max(at - part.before * 4, 0) : at + (0 if part.causal else part.after * 4) + 1]
            for s in [s for s in near if s != t]:
                weight = (q[b, t, h] @ k[b, s, h]).exp()
                out[b, t, h], total = out[b, t, h] + weight * v[b, s, h], total + weight
        out[b, t, h] = v[b, t, h] if isinstance(total, float) else out[b, t, h] / total
    return module.o(out.flatten(2))


@pytest.mark.parametrize("fields", [{"causal": True}, {"after": 1, "rounds": 1}, {"causal": True, "before": 0}])
def test_in_its_own_bucket(fields: dict[str, Any]) -> None:
    module, x = module_of(own_bucket=True, **fields), numbers(2, 21, D)
    expected = by_hand(module, x)
    for kernel in ("auto", "eager"):
        close(module(x, context(21, kernel=kernel)), expected, 1e-5)


@pytest.mark.parametrize("fields", [{"chunk": 32}, {"chunk": 32, "own_bucket": True, "after": 1}])
def test_one_bucket_is_plain_attention(fields: dict[str, Any]) -> None:
    """With rotations of 0 all tokens have one hash, and a chunk contains the text: softmax over all other tokens."""
    module, x = module_of(**fields), numbers(2, 9, D)
    module.rotations.zero_()
    q, v = (layer(x).unflatten(-1, (H, K)).transpose(1, 2) for layer in (module.qk, module.v))
    k = q / (q.square().mean(-1, keepdim=True) + 1e-6).sqrt() / K**0.5
    weights = (q @ k.mT).masked_fill(torch.eye(9, dtype=torch.bool), float("-inf")).softmax(-1)
    close(module(x, context(9)), module.o((weights @ v).transpose(1, 2).flatten(2)))
    shown = Weights()
    module(x, context(9, taps=shown))
    close(shown[0], weights)


def test_drawn_with_the_weights_and_kept() -> None:
    spec = af.override(families.find("gpt2").read(CONFIGS["gpt2"]), {OP: LSHAttention(
        num_heads=4, causal=True, own_bucket=True)})  # fmt: skip
    one, same, other = (af.build(spec, seed=seed) for seed in (3, 3, 4))
    name = "decoder.layers.1.attention.op.rotations"
    drawn = one.state_dict()[name]
    assert torch.equal(drawn, same.state_dict()[name]) and not torch.equal(drawn, other.state_dict()[name])
    assert 0.8 < float(drawn.std()) < 1.2


@pytest.mark.parametrize("fields, line", [
    ({"buckets": (3,)}, r"buckets.0 is 3; .*even"), ({"buckets": ()}, "buckets is empty; .*even"),
    ({"buckets": (2**20, 2**20)}, r"product must be below 2\^31"), ({"chunk": 0}, "chunk is 0"),
    ({"causal": True, "own_bucket": True, "after": 1}, "after must be 0"),
])  # fmt: skip
def test_refused(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=f"^LSHAttention.*{line}"):
        LSHAttention(num_heads=2, **fields)
