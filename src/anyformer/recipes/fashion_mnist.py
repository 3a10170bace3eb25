"""Classify grey images of ten garments (Fashion-MNIST): small vision models from scratch."""

from __future__ import annotations

from typing import Any

from anyformer import families
from anyformer.data import IDX, Beside, Data
from anyformer.models import Model
from anyformer.objectives.images import ClassifyImage
from anyformer.parts.embedding.convolution import ConvolutionEmbedding
from anyformer.parts.grid.convolution import Convolution
from anyformer.recipes.shared.encoder import label_fields
from anyformer.specs.codec import override
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

RECIPES = {
    "fashion-mnist": "Classify grey images of ten garments (Fashion-MNIST): a small ViT from scratch.",
    "fashion-mnist-swin": "Classify grey images of ten garments (Fashion-MNIST): a small Swin from scratch.",
    "fashion-mnist-resnet": "Classify grey images of ten garments (Fashion-MNIST): a small ResNet, to compare with.",
}

LABELS = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
IDS = label_fields(LABELS)
SIDE = 28


def vit() -> Model:
    config = {
        "architectures": ["ViTForImageClassification"],
        "image_size": SIDE,
        "patch_size": 4,
        "num_channels": 1,
        "hidden_size": 256,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "layer_norm_eps": 1e-6,
        **IDS,
    }
    steps = ("attention", "feedforward")
    return override(families.find("vit").read(config), {f"encoder.layers.{step}.drop_path": 0.1 for step in steps})


def swin() -> Model:
    return families.find("swin").read({
        "architectures": ["SwinForImageClassification"], "image_size": SIDE, "patch_size": 2, "num_channels": 1,
        "embed_dim": 128, "depths": [2, 6], "num_heads": [4, 8], "window_size": 7, "drop_path_rate": 0.1, **IDS,
    })  # fmt: skip


def resnet() -> Model:
    """Return a small ResNet whose stem does not downsample, because the images are small."""
    spec = families.find("resnet").read(
        {
            "architectures": ["ResNetForImageClassification"],
            "embedding_size": 64,
            "hidden_sizes": [64, 128, 256],
            "depths": [2, 2, 2],
            "layer_type": "basic",
            **IDS,
        }
    )
    stem = ConvolutionEmbedding(layers=(Convolution(),), pool=None, channels=1, image_size=(SIDE, SIDE))
    return override(spec, {"embedding": stem})


def pictures(data: str, part: str) -> Beside:
    kinds = {"image": "images-idx3", "label": "labels-idx1"}
    files = {name: f"{data}/fashion_mnist/{part}-{kind}-ubyte.gz" for name, kind in kinds.items()}
    return Beside(sources=tuple(IDX(name=name, path=path) for name, path in files.items()))


MODELS: dict[str, Any] = {"fashion-mnist": vit, "fashion-mnist-swin": swin, "fashion-mnist-resnet": resnet}
STEPS = {"fashion-mnist": 9000, "fashion-mnist-swin": 12_000, "fashion-mnist-resnet": 4000}


def run(data: str, name: str) -> Run:
    return Run(
        name=name,
        model=MODELS[name](),
        data=Data(train=pictures(data, "train"), valid=pictures(data, "t10k")),
        objective=ClassifyImage(
            labels=LABELS,
            image_size=(SIDE, SIDE),
            mean=(0.2860,),
            std=(0.3530,),
            flip=0.5,
            shift=2,
            smoothing=0.1,
            cut=0.5,
            erase=0.25,
        ),
        optimizer=AdamW(lr=1e-3, weight_decay=0.05),
        schedule=Cosine(warmup=400, floor=0.01),
        batch=Batch(examples=1024),
        steps=STEPS[name],
        precision="bf16",
        ema=0.999,
        # the validation split is the test set, so nothing is chosen by it: the result is the last step's
        evaluate=Evaluate(every=500, metrics=("accuracy",), best="accuracy", patience=None),
        keep=Keep(every=2000, best=False),
    )
