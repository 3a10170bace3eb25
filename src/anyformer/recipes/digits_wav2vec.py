"""wav2vec 2.0 on spoken digits: pretrain on audio only, then fine-tune with the labels of one recording in ten."""

from __future__ import annotations

from typing import Any

from anyformer import families
from anyformer.data import Data
from anyformer.objectives.contrast import Contrast
from anyformer.objectives.ctc import CTC
from anyformer.recipes.shared.spoken_digits import RATE, SIZE, test_strings, training_strings, validation_strings, words
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run

RECIPES = {
    "digits-wav2vec": "Pretrain a small wav2vec 2.0 on spoken digits without labels.",
    "digits-wav2vec-tenth": "Fine-tune digits-wav2vec to transcribe digits, with the labels of one recording in ten.",
    "digits-scratch-tenth": "Train the model of digits-wav2vec-tenth from scratch on the same labels, to compare.",
}

# frames of 20 ms; the stem normalizes each frame separately, so that loudness does not matter
CONFIG = {
    "vocab_size": SIZE, "pad_token_id": 0, "hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 4,
    "intermediate_size": 768, "conv_dim": [128] * 5, "conv_kernel": [10, 4, 3, 3, 2], "conv_stride": [5, 4, 2, 2, 2],
    "feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True, "num_conv_pos_embeddings": 32,
    "num_conv_pos_embedding_groups": 8, "layerdrop": 0.05, "num_codevectors_per_group": 64, "codevector_dim": 128,
    "proj_codevector_dim": 128, "num_negatives": 50, "mask_time_prob": 0.2, "mask_time_length": 6,
    "mask_feature_prob": 0.1, "mask_feature_length": 16, "ctc_loss_reduction": "mean", "ctc_zero_infinity": True,
}  # fmt: skip


def model(architecture: str) -> Any:
    return families.find("wav2vec2").read({**CONFIG, "architectures": [architecture]})


def run(data: str = "data", name: str = "digits-wav2vec") -> Run:
    if name == "digits-wav2vec":
        spec = model("Wav2Vec2ForPreTraining")
        stem = spec.embedding.stem
        return Run(
            name=name,
            model=spec,
            data=Data(train=training_strings(data), valid=validation_strings(data)),
            objective=Contrast(rate=RATE, hop=stem.hop, reach=stem.reach, negatives=50, span=8, cooling=0.9995),
            optimizer=AdamW(lr=5e-4, betas=(0.9, 0.98), weight_decay=0.01),
            schedule=Cosine(warmup=500, floor=0.05),
            batch=Batch(examples=64),
            steps=5000,
            evaluate=Evaluate(every=500, patience=None),
            keep=Keep(every=1000, best=False),  # losses at different temperatures cannot be compared
        )
    scratch = name == "digits-scratch-tenth"
    return Run(
        name=name,
        model=model("Wav2Vec2ForCTC")
        if scratch
        else Pretrained(path="runs/digits-wav2vec", architecture="Wav2Vec2ForCTC"),
        vocabulary=words(),
        data=Data(
            train=training_strings(data, count=2000, one_in=10), valid=validation_strings(data), test=test_strings(data)
        ),
        objective=CTC(rate=RATE, speed=0.15, noise=0.1),
        optimizer=AdamW(lr=5e-4, betas=(0.9, 0.98), weight_decay=0.01),
        schedule=Cosine(warmup=200, floor=0.01),
        batch=Batch(examples=64),
        freeze=() if scratch else ("embedding.stem",),
        steps=2000,
        evaluate=Evaluate(every=250, metrics=("wer",), patience=None),
        keep=Keep(every=500, best=False),
    )
