"""Decoding on a CUDA GPU, one family per type of state: fast steps write the same tokens as plain steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.parts.mask import Causal, Window

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

EXPERTS = {"width": 512, "decoder.depth": 1, "decoder.layers.feedforward.op.expert.width": 512}
LATENT = {
    "width": 512, "decoder.depth": 2, "decoder.pattern": ("dense", "sparse"),
    "decoder.layers.dense.feedforward.op.width": 512, "decoder.layers.sparse.feedforward.op.num_experts": 8,
}  # fmt: skip
WINDOW = {"decoder.depth": 1, "decoder.layers.attention.op.mask": Causal() & Window(size=16)}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "keys and values": ("gpt2", {"decoder.depth": 1}),
    "grouped keys and values": ("llama3.2-1b", {"decoder.depth": 1}),
    "sliding window": ("llama3.2-1b", WINDOW),
    "experts": ("mixtral-8x7b", EXPERTS),
    "latent": ("deepseek-v2-lite", LATENT),
    "convolution and recurrence": ("mamba-130m", {"decoder.depth": 1}),
    "recurrence": ("rwkv-4-169m", {"decoder.depth": 1}),
    "cross attention": ("t5-small", {"encoder.depth": 1, "decoder.depth": 1}),
}
DEVICE = "cuda"


@pytest.mark.parametrize("kind", FAMILIES)
def test_fast_steps_write_the_plain_tokens(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, changes = FAMILIES[kind]
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    model = af.build(af.override(af.spec(name), changes), seed=0, device=DEVICE).eval()
    for seed in (0, 1):  # the second prompt uses the step that the first one captured
        ids = torch.randint(5, 1000, (2, 24), generator=torch.Generator().manual_seed(seed)).to(DEVICE)
        options: dict[str, Any] = {"max_new_tokens": 24, "eos_token_id": []}
        plain = af.generate(model, ids, compile=False, **options)
        for fast in (None, True):
            tokens = af.generate(model, ids, compile=fast, **options)
            assert torch.equal(tokens, plain), f"compile={fast}, prompt {seed}"
