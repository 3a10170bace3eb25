"""Strings of 3 to 8 spoken digits into words: a small Conformer over a spectrogram, and CTC."""

from __future__ import annotations

from typing import Any

from anyformer import families
from anyformer.data import Data
from anyformer.objectives.ctc import CTC
from anyformer.parts.audio import SpecAugment
from anyformer.parts.init import Kaiming
from anyformer.recipes._digits import RATE, SIZE, held, learnt, official, words
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

# Conformer S [Gulati et al. 2020] with fewer layers: 4 heads over 144, taps of 31 frames, a frame every 40 ms
CHANNELS, AUGMENT = 40, SpecAugment(
    time=0.1, time_span=8, time_least=1, channels=0.2, channel_span=6, channel_least=1, learned=False
)
CONFIG = {
    "architectures": ["ParakeetForCTC"], "vocab_size": SIZE, "pad_token_id": 0,
    "encoder_config": {
        "hidden_size": 144, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 576,
        "conv_kernel_size": 31, "subsampling_factor": 4, "subsampling_conv_channels": 64, "num_mel_bins": CHANNELS,
        "layerdrop": 0.0, "scale_input": False,
    },
}  # fmt: skip
INIT = {"*": Kaiming(gain=3**-0.5, normal=False)}  # one spread for all, as published, is for wide models


def run(data: str = "data") -> Run:
    model: Any = families.find("parakeet_ctc").read(CONFIG)
    return Run(
        name="digits",
        model=model.replace(embedding=model.embedding.replace(augment=AUGMENT), init=INIT),
        vocabulary=words(),
        data=Data(train=learnt(data), valid=held(data), test=official(data)),
        objective=CTC(rate=RATE, form="bank", channels=CHANNELS, window=200, hop=80, speed=0.15, noise=0.1),
        optimizer=AdamW(lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01),
        schedule=Cosine(warmup=300, floor=0.01),
        batch=Batch(examples=64),
        steps=1700,
        evaluate=Evaluate(every=200, metrics=("wer",)),
        keep=Keep(every=500, best=False),
    )
