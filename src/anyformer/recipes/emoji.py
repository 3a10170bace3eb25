"""Match images of emoji with their names (CLIP): two small towers from scratch.

The images are from an emoji font if {data}/image_text_emoji exists, otherwise generated (`anyformer fetch emoji`).
"""

from __future__ import annotations

from anyformer import families
from anyformer.data import Arrays, Beside, Data, Held, JSONLines, Source, TrainedBPE, Worded
from anyformer.objectives.match import MatchImage
from anyformer.recipes.shared.folders import first_of
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

LENGTH = 32
FORMS = ("{name}", "{name}", "{subcategory}: {name}", "{name}, {keywords:4}", "{keywords:6}")  # one is drawn each time
TEXT = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": LENGTH,
    "eos_token_id": 0,
    "bos_token_id": 0,
    "pad_token_id": 1,
}
IMAGE = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 4,
}


def pairs(data: str, forms: tuple[str, ...] = FORMS) -> Source:
    folder = first_of(f"{data}/image_text_emoji", f"{data}/drawn_emoji")
    images = Arrays(path=f"{folder}/emoji32.npz", fields={"image": "images"})
    texts = Worded(source=JSONLines(path=f"{folder}/captions.jsonl.gz"), forms=forms)
    return Beside(sources=(images, texts))


def run(data: str = "data") -> Run:
    return Run(
        name="emoji",
        model=families.find("clip").read({"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 256}),
        data=Data(
            train=Held(source=pairs(data), one_in=10),
            valid=Held(source=pairs(data), one_in=10, out=True),
        ),
        objective=MatchImage(image_size=(32, 32), flip=0.5, shift=3, length=LENGTH),
        vocabulary=TrainedBPE(size=2048, end="eos_token"),
        optimizer=AdamW(lr=5e-4, weight_decay=0.1),
        schedule=Cosine(warmup=100, floor=0.01),
        batch=Batch(examples=512),
        steps=3000,
        evaluate=Evaluate(every=300, patience=None),
        keep=Keep(every=300, best=False),  # the loss rises early, while the ranks still improve
    )
