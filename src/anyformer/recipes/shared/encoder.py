"""Small BERTs with a BPE vocabulary, for recipes that train an encoder from scratch."""

from __future__ import annotations

from collections.abc import Sequence
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
    return families.find("bert").read(config | (label_fields(labels) if labels else {}))


def tiny_bert(architecture: str, size: int, length: int, labels: tuple[str, ...] = ()) -> Model:
    """Return a BERT for your own data: two layers of width 128, a vocabulary of `size`, texts of `length` tokens."""
    shape = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 512}
    return small_bert(architecture, labels, vocab_size=size, max_position_embeddings=length, **shape)


def label_fields(labels: Sequence[str]) -> dict[str, Any]:
    """Return the config fields that contain the names of labels."""
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {l: i for i, l in enumerate(labels)},
    }


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
