"""A script as a user writes it. tests/test_types.py runs it, and mypy checks it: --strict, and no expression is Any."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

import anyformer as af
from anyformer.models import TransformerModule
from anyformer.parts import Attention, Block, Causal, DecoderModel, RMSNorm, Rope, Sublayer

TEXTS = ["The quick brown fox", "jumps over the lazy dog"]


def describe(vocab_size: int) -> DecoderModel:
    """Return a small GPT-2."""
    small = {
        "width": 32, "decoder.depth": 2, "embedding.tokens.vocab_size": vocab_size, "head.vocab_size": vocab_size,
        "decoder.layers.attention.op.num_heads": 4, "decoder.layers.attention.op.head_width": 8,
        "decoder.layers.feedforward.op.width": 64,
    }  # fmt: skip
    return af.override(af.spec("gpt2"), small)


def with_my_blocks(spec: DecoderModel) -> DecoderModel:
    attention = Attention(num_heads=4, num_kv_heads=2, mask=Causal(), position=Rope(), bias="")
    feedforward = af.parts.GatedMLP(width=64, activation="silu")
    print(feedforward.width + 1, attention.num_heads + 1, spec.decoder.depth + 1)
    block = Block(
        attention=Sublayer(op=attention, pre_norm=RMSNorm(eps=1e-6)),
        feedforward=Sublayer(op=feedforward, pre_norm=RMSNorm()),
    )
    return spec.replace(decoder=spec.decoder.replace(layers=block))


def train(model: TransformerModule[DecoderModel], ids: Tensor, steps: int = 3) -> list[float]:
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
    losses: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(input_ids=ids, labels=ids)
        torch.autograd.backward(out.loss)
        optimizer.step()
        losses.append(out.loss.item())
    return losses


def main(vocabulary: Path, folder: Path) -> None:
    read = af.processor(vocabulary)
    ids = read(TEXTS[0])["input_ids"]
    spec = describe(len(read.tokenizer.vocab))
    print(af.count(with_my_blocks(spec)).parameters // 1000, af.count(spec).memory(torch.float32).total + 1)
    model = af.build(spec, seed=0)
    print(train(model, ids)[-1], model.spec.decoder.depth + 1)
    adapted = af.lora.apply(model, af.lora.LoRA(rank=4, targets=("*.q", "*.v")))
    print(train(adapted, ids)[-1])
    model = af.lora.merge(adapted).eval()
    model.folder = vocabulary  # its tokenizer is saved with the model
    af.save(model, folder)

    loaded = af.load(folder)
    batch = read(TEXTS[1]).to("cpu")
    logits = loaded(**batch).logits
    written = af.generate(loaded, **batch, max_new_tokens=4, pad_token_id=0)
    details = loaded.generate(ids, max_new_tokens=4, num_beams=2, return_dict=True, pad_token_id=0)
    print(logits.shape[-1], read.decode(written), read.batch_decode(details.sequences)[0].strip())
    run = af.trace(loaded, keep=["decoder.layers.*"], input_ids=ids)
    print(run.output.logits.shape, run["decoder.layers.1"].mean().item())
    print([text.strip() for text in af.tasks.write(loaded, TEXTS, max_new_tokens=2, batch=1)])
    classifier = af.load(folder, labels=["good", "bad"])
    best = af.tasks.classify(classifier, TEXTS[0], top_k=2)[0]
    print(best["label"].upper(), best["score"] + 1, [row[0]["label"] for row in af.tasks.classify(classifier, TEXTS)])
    af.save(classifier, folder / "classifier")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
