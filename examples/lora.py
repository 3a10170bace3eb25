"""Fine-tunes with LoRA: two small matrices beside each chosen layer learn, and everything else stays as it is."""

import torch

import anyformer as af
from anyformer.transforms import lora

# in the place of af.load("openai-community/gpt2"), so that this runs without a network
small = {"width": 48, "decoder.depth": 2, "decoder.layers.attention.op.head_width": 4}
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

af.save(model, "adapter", format="peft")  # what was learnt, and nothing of the base model; PEFT reads it too
lora.merge(model)  # or into the weights: a plain model again
af.save(model, "merged", format="hf")
