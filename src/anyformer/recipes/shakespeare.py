"""A GPT that writes Shakespeare byte by byte (tiny_shakespeare, 1.1 MB): 15 minutes on a CPU."""

from __future__ import annotations

from anyformer import families
from anyformer.data import Bytes, Data, TextFiles
from anyformer.objectives.causal import NextToken
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

CONFIG = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 258,
    "n_positions": 128,
    "n_embd": 192,
    "n_layer": 6,
    "n_head": 6,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.0,
}


def run(data: str = "data") -> Run:
    text = f"{data}/tiny_shakespeare/input.txt.gz"
    return Run(
        name="shakespeare",
        model=families.find("gpt2").read(CONFIG),
        vocabulary=Bytes(),
        data=Data(train=TextFiles(path=text, stop=0.9), valid=TextFiles(path=text, start=0.9)),
        objective=NextToken(),
        optimizer=AdamW(lr=1e-3, betas=(0.9, 0.99)),
        schedule=Cosine(warmup=100, floor=0.1),
        batch=Batch(examples=12),
        steps=3000,
        evaluate=Evaluate(every=500, sample="ROMEO:"),
        keep=Keep(every=500),
    )
