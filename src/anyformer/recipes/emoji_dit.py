"""Generate emoji from noise and a text: a small DiT with cross-attention to a text encoder, minutes on a GPU."""

from __future__ import annotations

from typing import Any

from anyformer import families
from anyformer.data import Data, Held, TrainedBPE
from anyformer.objectives.diffuse import DiffuseText
from anyformer.parts import EncoderDecoderModel, Normal
from anyformer.recipes.emoji import LENGTH, pairs
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

WIDTH, HEADS = 256, 4
TEXT = {
    "architectures": ["BertModel"], "vocab_size": 2048, "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": 4, "num_attention_heads": HEADS, "max_position_embeddings": LENGTH, "type_vocab_size": 1,
}  # fmt: skip
IMAGE = {
    "num_attention_heads": HEADS, "attention_head_dim": WIDTH // HEADS, "num_layers": 8, "in_channels": 3,
    "sample_size": 32, "patch_size": 4, "per_layer": False, "norm_eps": 1e-6, "text_width": WIDTH,
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
            "embedding.*": Normal(std=0.02),
            **{path.replace("embedding", "decoder_embedding", 1): init for path, init in image.init.items()},
        },
    )


def run(data: str = "data") -> Run:
    return Run(
        name="emoji-dit",
        model=text_to_image(),
        data=Data(
            train=Held(source=pairs(data), one_in=10),
            valid=Held(source=pairs(data), one_in=10, out=True),
        ),
        objective=DiffuseText(image_size=(32, 32), flip=0.5, length=LENGTH),
        vocabulary=TrainedBPE(size=2048, end="eos_token"),
        optimizer=AdamW(lr=5e-4, weight_decay=0.0, betas=(0.9, 0.99)),
        schedule=Cosine(warmup=200, floor=0.02),
        batch=Batch(examples=256),
        steps=8000,
        ema=0.999,
        precision="bf16",
        evaluate=Evaluate(every=1000, patience=None),
        keep=Keep(every=1000, best=False),  # few pictures: the loss of new ones rises early
    )
