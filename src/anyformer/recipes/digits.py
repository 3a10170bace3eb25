"""Transcribe strings of 3 to 8 digits, read aloud: a small Conformer on spectrograms, with CTC or a decoder."""

from __future__ import annotations

from typing import Any

from anyformer import families
from anyformer.data import Data, Words
from anyformer.objectives.ctc import CTC
from anyformer.objectives.recordings import Sounds
from anyformer.objectives.transcribe import Transcribe
from anyformer.parts.embedding.spec_augment import SpecAugment
from anyformer.parts.init import Kaiming
from anyformer.recipes.shared.spoken_digits import RATE, SIZE, test_strings, training_strings, validation_strings, words
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

RECIPES = {
    "digits": "Transcribe strings of 3 to 8 spoken digits: a small Conformer on spectrograms, with CTC.",
    "digits-seq2seq": "Transcribe strings of 3 to 8 spoken digits: the same Conformer, with a Transformer decoder.",
}

# Conformer S [Gulati et al. 2020] with fewer layers: width 144, 4 heads, kernels of 31 frames, one frame per 40 ms
CHANNELS, AUGMENT = (
    40,
    SpecAugment(time=0.1, time_span=8, time_least=1, channels=0.2, channel_span=6, channel_least=1, learned=False),
)
CONFIG = {
    "architectures": ["ParakeetForCTC"],
    "vocab_size": SIZE,
    "pad_token_id": 0,
    "encoder_config": {
        "hidden_size": 144,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "intermediate_size": 576,
        "conv_kernel_size": 31,
        "subsampling_factor": 4,
        "subsampling_conv_channels": 64,
        "num_mel_bins": CHANNELS,
        "layerdrop": 0.0,
        "scale_input": False,
    },
}
INIT = {"*": Kaiming(gain=3**-0.5, normal=False)}  # the published init, one std for all, suits only wide models
SEQ2SEQ = {  # two decoder layers on six encoder layers; one more token, the end token
    "vocab_size": SIZE + 1,
    "encoder_layers": 6,
    "decoder_layers": 2,
    "conv_kernel_size": 31,
    "subsampling_channels": 64,
    "num_mel_bins": CHANNELS,
    "max_target_positions": 32,
    "eos_token_id": 1,
}
SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def run(data: str = "data", name: str = "digits") -> Run:
    is_seq2seq = name == "digits-seq2seq"
    objective: type[Sounds] = Transcribe if is_seq2seq else CTC
    model: Any = families.find("conformer").read(SEQ2SEQ) if is_seq2seq else families.find("parakeet_ctc").read(CONFIG)
    return Run(
        name=name,
        model=model.replace(embedding=model.embedding.replace(augment=AUGMENT), init=INIT),
        vocabulary=Words(special=SPECIAL) if is_seq2seq else words(),
        data=Data(train=training_strings(data), valid=validation_strings(data), test=test_strings(data)),
        objective=objective(rate=RATE, form="bank", channels=CHANNELS, window=200, hop=80, speed=0.15, noise=0.1),
        optimizer=AdamW(lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01),
        schedule=Cosine(warmup=300, floor=0.01),
        batch=Batch(examples=64),
        steps=1700,
        evaluate=Evaluate(every=200, metrics=("wer",), patience=None),
        keep=Keep(every=500, best=False),
    )
