"""Saves a model so that transformers opens it, and compares the two."""

import torch
import transformers

import anyformer as af

small = {
    "width": 48,
    "decoder.depth": 2,
    "decoder.layers.attention.op.head_width": 4,
    "decoder.layers.feedforward.op.width": 192,
}
model = af.build(af.override(af.spec("gpt2"), small), seed=0).eval()
af.save(model, "exported", format="hf")

theirs = transformers.AutoModelForCausalLM.from_pretrained("exported")
ids = torch.arange(100, 120)[None]
with torch.no_grad():
    difference = (model(input_ids=ids).logits - theirs(ids).logits).abs().max()
print(type(theirs).__name__, "differs by at most", float(difference))
assert difference < 1e-5
