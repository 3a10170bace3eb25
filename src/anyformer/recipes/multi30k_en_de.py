"""Translate English to German (multi30k, 29,000 sentences): an encoder-decoder from scratch, minutes on a GPU."""

from __future__ import annotations

from anyformer import families
from anyformer.data import Data, ParallelText, TrainedBPE
from anyformer.objectives.translate import Translate
from anyformer.train.optim import AdamW, Noam
from anyformer.train.run import Batch, Evaluate, Keep, Run

# On few sentences the smallest of three sizes is the best [Wu et al. 2021]: 4 + 4 layers of width 128, high dropout, a
# high learning rate (5e-3 after 2,000 steps) and averaged weights. Pre-norm, as in M2M-100: with post-norm and such a
# rate, the model learns little more than word frequencies.
SIZE, WIDTH, WARMUP, RATE = 10_000, 128, 2000, 5e-3
CONFIG = {  # one vocabulary for both languages; the decoder's start token is the end token
    "architectures": ["M2M100ForConditionalGeneration"], "vocab_size": SIZE, "d_model": WIDTH,
    "encoder_layers": 4, "encoder_attention_heads": 4, "encoder_ffn_dim": 256, "encoder_layerdrop": 0.0,
    "decoder_layers": 4, "decoder_attention_heads": 4, "decoder_ffn_dim": 256, "decoder_layerdrop": 0.0,
    "max_position_embeddings": 256, "dropout": 0.3, "attention_dropout": 0.0, "init_std": WIDTH**-0.5,
    "eos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 0,
}  # fmt: skip


def run(data: str = "data") -> Run:
    def pairs(name: str) -> ParallelText:
        home = f"{data}/multi30k/{name}"
        return ParallelText(paths={"source": f"{home}.en.gz", "target": f"{home}.de.gz"})

    return Run(
        name="multi30k-en-de",
        model=families.find("m2m_100").read(CONFIG),
        vocabulary=TrainedBPE(size=SIZE, special={"eos_token": "</s>", "pad_token": "<pad>"}, end="eos_token"),
        data=Data(train=pairs("train"), valid=pairs("val"), test=pairs("test_2016_flickr")),
        objective=Translate(smoothing=0.1),
        optimizer=AdamW(lr=RATE * (WIDTH * WARMUP) ** 0.5, betas=(0.9, 0.98), weight_decay=0.0),
        schedule=Noam(width=WIDTH, warmup=WARMUP),
        batch=Batch(tokens=4096),
        steps=9000,
        ema=0.999,
        evaluate=Evaluate(every=1000, metrics=("bleu",), best="bleu"),
        keep=Keep(every=1000),
    )
