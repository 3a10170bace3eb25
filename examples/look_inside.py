"""Reads values inside a model by address, and changes them."""

import torch

import anyformer as af

small = {
    "width": 48,
    "decoder.depth": 3,
    "decoder.layers.attention.op.head_width": 4,
    "decoder.layers.feedforward.op.width": 192,
}
model = af.build(af.override(af.spec("gpt2"), small), seed=0).eval()
ids = torch.tensor([[464, 3280, 318, 5433]])

with torch.no_grad():
    run = af.trace(model, keep=["decoder.layers.*.attention.op.weights", "decoder.layers.*"], input_ids=ids)
    print(run)
    weights = run["decoder.layers.0.attention.op.weights"]  # (B, H, T, S)
    print("attention of the last token:", [round(share, 2) for share in weights[0, :, -1].mean(0).tolist()])

    # the logits without the attention of layer 1
    without = {"decoder.layers.1.attention.branch": lambda branch, address: torch.zeros_like(branch)}
    changed = af.trace(model, change=without, input_ids=ids).output.logits
    print("the logits move by at most", float((changed - run.output.logits).abs().max()))
