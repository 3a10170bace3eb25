"""Match images of coloured shapes with their captions (CLIP): two towers from scratch, minutes on a CPU.

One combination of shape and colour in eight is excluded from training; the validation images show only these.
"""

from __future__ import annotations

from anyformer import families
from anyformer.data import Arrays, Beside, Data, JSONLines, Source, TrainedBPE, Where, Worded
from anyformer.objectives.match import MatchImage
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

LENGTH, WORDS = 24, 320
FORMS = (
    "{colour} {shape}",
    "a {size} {colour} {shape}",
    "a {size} {colour} {shape}, {place}",
)  # one is drawn each time
TOWER = {"hidden_size": 96, "intermediate_size": 384, "num_hidden_layers": 3, "num_attention_heads": 4}
TEXT = {
    **TOWER,
    "vocab_size": WORDS,
    "max_position_embeddings": LENGTH,
    "eos_token_id": 0,
    "bos_token_id": 0,
    "pad_token_id": 1,
}
IMAGE = {**TOWER, "image_size": 32, "patch_size": 8}


def pairs(data: str, unseen: int) -> Source:
    """Return images and captions of the combinations that are excluded from training (`unseen` 1) or not (0)."""
    folder = f"{data}/shapes"
    images = Arrays(path=f"{folder}/shapes32.npz", fields={"image": "images"})
    every = Beside(sources=(images, Worded(source=JSONLines(path=f"{folder}/captions.jsonl.gz"), forms=FORMS)))
    return Where(source=every, column="unseen", least=unseen, most=unseen)


def run(data: str = "data") -> Run:
    return Run(
        name="shapes",
        model=families.find("clip").read({"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 96}),
        data=Data(train=pairs(data, 0), valid=pairs(data, 1)),
        objective=MatchImage(image_size=(32, 32), length=LENGTH),
        vocabulary=TrainedBPE(size=WORDS, end="eos_token"),
        optimizer=AdamW(lr=1e-3, weight_decay=0.1),
        schedule=Cosine(warmup=50, floor=0.01),
        batch=Batch(examples=64),
        steps=1000,
        evaluate=Evaluate(every=200, patience=None),
        keep=Keep(every=500),
    )
