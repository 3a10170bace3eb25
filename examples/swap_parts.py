"""Parts move between families: Llama's positions in BERT, BLOOM's biases, Mamba's mixer and experts in GPT-2."""

import torch

import anyformer as af

gpt = {"width": 48, "decoder.depth": 2, "decoder.layers.attention.op.head_width": 4}
bert = {"width": 48, "encoder.depth": 2, "encoder.layers.attention.op.head_width": 4}
no_position: dict = {"embedding.position": None}
rotary = no_position | {"encoder.layers.attention.op.position": af.parts.Rope()}
experts = af.parts.MoE(expert=af.parts.GatedMLP(width=64), num_experts=4, router=af.parts.TopK(top_k=2))
swaps = {
    "GPT-2 itself": ("gpt2", gpt),
    "GPT-2 with Mamba in layer 0": ("gpt2", {"decoder.layers.0.attention.op": af.parts.SelectiveState(width=96)}),
    "GPT-2 with ALiBi": ("gpt2", no_position | {"decoder.layers.attention.op.position": af.parts.Alibi(num_heads=12)}),
    "GPT-2 with experts": ("gpt2", {"decoder.layers.feedforward.op": experts}),
    "BERT with rotary positions": ("bert-base", rotary),
}

ids = torch.arange(100, 116)[None]
for name, (start, changes) in swaps.items():
    spec = af.override(af.spec(start), {**(gpt if start == "gpt2" else bert), **changes})
    af.build(spec, seed=0)(input_ids=ids)
    print(f"{name:30} {af.count(spec).parameters:>10,} parameters")
