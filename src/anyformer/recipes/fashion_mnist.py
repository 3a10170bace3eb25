"""Which of ten garments a grey picture shows (Fashion-MNIST): a small ViT from scratch."""

from __future__ import annotations

from anyformer import families
from anyformer.data import Arrays, Data
from anyformer.objectives.picture import ClassifyImage
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

LABELS = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
CONFIG = {
    "architectures": ["ViTForImageClassification"], "image_size": 28, "patch_size": 4, "num_channels": 1,
    "hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 512,
    "hidden_dropout_prob": 0.1, "layer_norm_eps": 1e-6,
    "id2label": {str(i): label for i, label in enumerate(LABELS)},
    "label2id": {label: i for i, label in enumerate(LABELS)},
}  # fmt: skip


def pictures(data: str, part: str) -> Arrays:
    path = f"{data}/fashion_mnist_part/fashion_mnist_12k_2k.npz"
    return Arrays(path=path, fields={"image": f"x_{part}", "label": f"y_{part}"})


def run(data: str = "data") -> Run:
    return Run(
        name="fashion-mnist",
        model=families.find("vit").read(CONFIG),
        data=Data(train=pictures(data, "train"), valid=pictures(data, "test")),
        objective=ClassifyImage(
            labels=LABELS, image_size=(28, 28), mean=(0.2860,), std=(0.3530,), flip=0.5, shift=2, smoothing=0.1
        ),
        optimizer=AdamW(lr=1e-3, weight_decay=0.05),
        schedule=Cosine(warmup=200, floor=0.01),
        batch=Batch(examples=256),
        steps=3000,
        evaluate=Evaluate(every=300, metrics=("accuracy",), best="accuracy"),
        keep=Keep(every=300),
    )
