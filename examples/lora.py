"""Fine-tunes with LoRA: only two small matrices per chosen layer are trained."""

import torch

import anyformer as af
from anyformer.transforms import lora

# a small model with random weights; the published one: af.load("openai-community/gpt2")
small = {
    "width": 48,
    "decoder.depth": 2,
    "decoder.layers.attention.op.head_width": 4,
    "decoder.layers.feedforward.op.width": 192,
}
model = af.build(af.override(af.spec("gpt2"), small), seed=0)
ids = torch.arange(100, 130)[None]

lora.apply(model, lora.LoRA(rank=4, targets=("*.q", "*.v")))  # patterns of addresses
learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
print(f"{sum(p.numel() for p in learning):,} of {sum(p.numel() for p in model.parameters()):,} parameters learn")

optimizer = torch.optim.AdamW(learning, lr=1e-2)
for step in range(10):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: {loss.item():.3f}")

af.save(model, "adapter", format="peft")  # only the LoRA weights; PEFT reads them too
lora.merge(model)  # or add them to the weights: a plain model again
af.save(model, "merged", format="hf")
