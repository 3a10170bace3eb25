"""A small BERT with a BPE vocabulary, for recipes that train an encoder from scratch."""

from __future__ import annotations

from typing import Any

from anyformer import families
from anyformer.data import TrainedBPE
from anyformer.models import Model
from anyformer.train.optim import AdamW
from anyformer.train.run import Pretrained, Run

SIZE, LENGTH = 8000, 512
SPECIAL = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}


def vocabulary(size: int = SIZE) -> TrainedBPE:
    return TrainedBPE(size=size, special=SPECIAL, begin="cls_token", end="sep_token")


def small_bert(architecture: str, labels: tuple[str, ...] = (), **changes: int) -> Model:
    config: dict[str, Any] = {
        "architectures": [architecture],
        "vocab_size": SIZE,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "max_position_embeddings": LENGTH,
        "pad_token_id": 0,
        **changes,
    }
    if labels:
        config["id2label"] = {str(i): label for i, label in enumerate(labels)}
        config["label2id"] = {label: i for i, label in enumerate(labels)}
    return families.find("bert").read(config)


def from_scratch(tuned: Run, **changes: Any) -> Run:
    """Return a fine-tuning run with a small BERT from scratch instead of the published model."""
    assert isinstance(tuned.model, Pretrained) and tuned.model.architecture is not None
    return tuned.replace(
        name=f"{tuned.name}-scratch",
        model=small_bert(tuned.model.architecture, tuned.model.labels),
        vocabulary=vocabulary(),
        optimizer=AdamW(lr=3e-4, weight_decay=0.01),
        **changes,
    )
