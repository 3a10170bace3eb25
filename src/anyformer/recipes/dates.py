"""Translate dates ("14 July 1789") to ISO form ("1789-07-14"): the Transformer of 2017, about a minute on a CPU."""

from __future__ import annotations

from anyformer import families
from anyformer.data import Bytes, Data, JSONLines
from anyformer.objectives.translate import Translate
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

CONFIG = {  # post-norm, sinusoidal positions, one table for both languages [Vaswani et al. 2017]; the tokens are bytes
    "architectures": ["MarianMTModel"], "vocab_size": 258, "d_model": 64,
    "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 256,
    "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 256,
    "max_position_embeddings": 64, "dropout": 0.0, "init_std": 64**-0.5, "scale_embedding": True,
    "activation_function": "relu", "eos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 1,
}  # fmt: skip


def run(data: str = "data") -> Run:
    return Run(
        name="dates",
        model=families.find("marian").read(CONFIG),
        vocabulary=Bytes(end="eos_token"),
        data=Data(
            train=JSONLines(path=f"{data}/dates/train.jsonl"),
            valid=JSONLines(path=f"{data}/dates/valid.jsonl"),
        ),
        objective=Translate(smoothing=0.0, target_length=16),
        optimizer=AdamW(lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0),
        schedule=Cosine(warmup=50, floor=0.01),
        batch=Batch(examples=64),
        steps=600,
        evaluate=Evaluate(every=150, metrics=("exact_match",)),
        keep=Keep(every=300, last=1),
    )
