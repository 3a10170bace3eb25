"""Generate emoji from noise and a text: a small DiT with cross-attention to a text encoder, minutes on a CPU core.

At this size it learns the faces and their colors, 93 % of the drawn emoji (docs/results/dit.md).
"""

from __future__ import annotations

from typing import Any

from anyformer import families
from anyformer.data import Data, Held, TrainedBPE
from anyformer.objectives.diffuse import DiffuseText
from anyformer.parts import EncoderDecoderModel, Normal
from anyformer.recipes.emoji import LENGTH, pairs
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

FORMS = ("{name}",)  # keywords of one emoji are keywords of others too
SIDE, WIDTH, HEADS = 16, 128, 4
TEXT = {
    "architectures": ["BertModel"], "vocab_size": 2048, "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "max_position_embeddings": LENGTH, "type_vocab_size": 1,
}  # fmt: skip
IMAGE = {
    "num_attention_heads": HEADS, "attention_head_dim": WIDTH // HEADS, "num_layers": 4, "in_channels": 3,
    "sample_size": SIDE, "patch_size": 4, "per_layer": False, "norm_eps": 1e-6, "text_width": WIDTH,
}  # fmt: skip


def text_to_image() -> EncoderDecoderModel:
    """Return an encoder of texts (BERT's) and a decoder that predicts the noise in an image (DiT's)."""
    text: Any = families.find("bert").read(TEXT)
    image: Any = families.find("dit_text").read(IMAGE)
    return EncoderDecoderModel(
        width=WIDTH,
        embedding=text.embedding,
        encoder=text.encoder,
        decoder_embedding=image.embedding,
        decoder=image.encoder,
        head=image.head,
        init={
            **{f"embedding.{table}.*": Normal(std=0.02) for table in ("tokens", "position", "segments")},
            **{path.replace("embedding", "decoder_embedding", 1): init for path, init in image.init.items()},
        },
    )


def run(data: str = "data") -> Run:
    return Run(
        name="emoji-dit",
        model=text_to_image(),
        data=Data(
            train=Held(source=pairs(data, FORMS), one_in=10),
            valid=Held(source=pairs(data, FORMS), one_in=10, out=True),
        ),
        objective=DiffuseText(image_size=(SIDE, SIDE), length=LENGTH),
        vocabulary=TrainedBPE(size=2048, end="eos_token"),
        optimizer=AdamW(lr=1.5e-3, weight_decay=0.0, betas=(0.9, 0.99)),
        schedule=Cosine(warmup=100, floor=0.02),
        batch=Batch(examples=64),
        steps=2000,
        ema=0.995,
        evaluate=Evaluate(every=500, patience=None),
        keep=Keep(every=500, best=False),  # few pictures: the loss of new ones rises early
    )
