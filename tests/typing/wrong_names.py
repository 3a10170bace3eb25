"""Mistakes: mypy reports each of them, and so does Python. The last comment is the name that both suggest.

tests/test_types.py runs this file and checks it with mypy; `make types` reports a mistake that mypy does not find as an
unused "type: ignore"."""

import torch

import anyformer as af
from anyformer.parts import Attention, GatedMLP

small = {
    "width": 16, "decoder.depth": 1, "embedding.tokens.vocab_size": 30, "head.vocab_size": 30,
    "decoder.layers.attention.op.num_heads": 2, "decoder.layers.attention.op.head_width": 8,
    "decoder.layers.feedforward.op.width": 32,
}  # fmt: skip
spec = af.override(af.spec("gpt2"), small)
model = af.build(spec, seed=0).eval()
ids = torch.ones(1, 3, dtype=torch.long)

GatedMLP(widht=3)  # type: ignore[call-arg]  # width
af.parts.GatedMLP(width="wide")  # type: ignore[arg-type]  # int
af.parts.GatedMPL(width=3)  # type: ignore[attr-defined]  # GatedMLP
Attention(num_heads=4, dropuot=0.1)  # type: ignore[call-arg]  # dropout
Attention(num_heads=4, mask=GatedMLP(width=3))  # type: ignore[arg-type]  # Mask
af.lora.LoRA(ranks=3)  # type: ignore[call-arg]  # rank
af.ovveride(spec, {"width": 32})  # type: ignore[attr-defined]  # override
af.tasks.clasify(model, "a")  # type: ignore[attr-defined]  # classify
af.tasks.classify(model, "a", topk=3)  # type: ignore[call-overload]  # top_k
af.tasks.open_model(model, bach=3)  # type: ignore[call-arg]  # batch
af.generate(model, ids, max_new_token=3)  # type: ignore[call-overload]  # max_new_tokens
model.generate(ids, num_beam=2)  # type: ignore[call-overload]  # num_beams
af.look.atention(af.trace(model, input_ids=ids))  # type: ignore[attr-defined]  # attention
