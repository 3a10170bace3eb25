"""In-context linear regression: a small GPT-2 on points and values, compared with the optimum, on one GPU."""

from __future__ import annotations

from anyformer import families
from anyformer.data import Data, Numbers
from anyformer.models import Model
from anyformer.objectives.regress import Regress
from anyformer.parts.embedding.regression_pairs import KINDS, PairEmbedding
from anyformer.parts.head.regression import PairHead
from anyformer.parts.position.absolute import Learned
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

CONFIG = {
    "architectures": ["GPT2Model"],
    "n_embd": 128,
    "n_layer": 8,
    "n_head": 4,
    "initializer_range": 0.1,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


def model(objective: Regress, **config: int) -> Model:
    """Return GPT-2's layers with an embedding and a head for pairs; `config` overrides sizes."""
    position = Learned(length=KINDS * (objective.context + 1))
    return (
        families.find("gpt2")
        .read({**CONFIG, **config})
        .replace(
            embedding=PairEmbedding(point_width=objective.width, position=position),
            head=PairHead(),
            family="",
            architecture="",
            source={},
        )
    )


def run(data: str = "data") -> Run:
    objective = Regress(width=5, context=40, noise=0.5)
    return Run(
        name="regression",
        model=model(objective),
        data=Data(train=Numbers(count=2**16), valid=Numbers(count=2**14, first=2**16)),
        objective=objective,
        optimizer=AdamW(lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01),
        schedule=Cosine(warmup=1000, floor=0.0),
        batch=Batch(examples=1024),
        steps=18_750,  # 19.2 million sequences
        precision="bf16",
        compile=True,
        evaluate=Evaluate(every=3750, patience=None),
        keep=Keep(every=3750),
    )
