"""Generates several texts of unequal length at once: greedily, by sampling, and with beams."""

import torch

import anyformer as af

# a small model with random weights; the published one: af.load("openai-community/gpt2")
small = {
    "width": 48,
    "decoder.depth": 2,
    "decoder.layers.attention.op.head_width": 4,
    "decoder.layers.feedforward.op.width": 192,
}
model = af.build(af.override(af.spec("gpt2"), small), seed=0).eval()

texts = [[464, 3280, 318], [40, 716]]  # ids; with a tokenizer: af.processor(folder)(["The answer is", "I am"])
length = max(map(len, texts))
ids = torch.tensor([[0] * (length - len(text)) + text for text in texts])  # pads on the left
mask = torch.tensor([[0] * (length - len(text)) + [1] * len(text) for text in texts])

together = model.generate(ids, attention_mask=mask, max_new_tokens=8)
alone = model.generate(torch.tensor(texts[1:]), max_new_tokens=8)
assert torch.equal(together[1, 1:], alone[0])  # the other text changes nothing

options = {"attention_mask": mask, "max_new_tokens": 8}
print("sampled:  ", model.generate(ids, do_sample=True, top_p=0.9, temperature=0.8, seed=1, **options).tolist())
best = model.generate(ids, num_beams=4, num_return_sequences=2, return_dict=True, **options)
print("beams:    ", best.sequences.tolist())
