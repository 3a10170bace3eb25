"""Trains a small GPT on text files, with the whole run written out: model, data, vocabulary, optimizer."""

from pathlib import Path

import anyformer as af
from anyformer.data import Data, TextFiles, TrainedBPE
from anyformer.objectives.causal import NextToken
from anyformer.train.optim import Cosine, Muon
from anyformer.train.run import Batch, Evaluate, Run
from anyformer.train.start import train

Path("texts").mkdir(exist_ok=True)
for name in ("one", "two", "three"):
    lines = [f"It was night {i}, and the old fox number {name} sang of the sea." for i in range(60)]
    Path("texts", f"{name}.txt").write_text("\n".join(lines))

model = af.override(af.spec("gpt2"), {
    "width": 64, "decoder.depth": 2, "embedding.position.length": 64,
    "embedding.tokens.vocab_size": 300, "head.vocab_size": 300,
    "decoder.layers.attention.op.num_heads": 4, "decoder.layers.attention.op.head_width": 16,
    "decoder.layers.feedforward.op.width": 256,
})  # fmt: skip
texts = TextFiles(path="texts")
run = Run(
    name="texts", model=model, vocabulary=TrainedBPE(size=300), objective=NextToken(),
    data=Data(train=texts.replace(stop=0.9), valid=texts.replace(start=0.9)),  # the last tenth of each file
    optimizer=Muon(lr=0.01), schedule=Cosine(warmup=5), batch=Batch(examples=8, length=64),
    steps=30, evaluate=Evaluate(every=30),
)  # fmt: skip

if __name__ == "__main__":
    train(run, "runs/texts", device="cpu", tell=print)
    print(af.tasks.write("runs/texts", "It was", max_new_tokens=20))
