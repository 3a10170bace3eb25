"""GPT-3 in eight sizes, with the paper's batches, learning rates and data mixture [Brown et al. 2020, tables 2.1, 2.2].

The paper's texts are not published: each folder of {data}/gpt3 replaces one of its sources. The vocabulary is trained
on them and has the size of GPT-2's, which the paper used. In the paper, the batch size grows during the first 4 to 12
billion tokens; here it is constant.
"""

from __future__ import annotations

from anyformer.checkpoint import spec
from anyformer.data import Data, Mixture, Share, TextFiles, TrainedBPE
from anyformer.objectives.causal import NextToken
from anyformer.recipes.gpt2_124m import NO_DROPOUT
from anyformer.specs.codec import override
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

RECIPES = {
    "gpt3-small": "GPT-3 of 125M parameters from scratch: batches of 0.5M tokens, rate 6e-4.",
    "gpt3-medium": "GPT-3 of 350M parameters from scratch: batches of 0.5M tokens, rate 3e-4.",
    "gpt3-large": "GPT-3 of 760M parameters from scratch: batches of 0.5M tokens, rate 2.5e-4.",
    "gpt3-xl": "GPT-3 of 1.3B parameters from scratch: batches of 1M tokens, rate 2e-4.",
    "gpt3-2.7b": "GPT-3 of 2.7B parameters from scratch: batches of 1M tokens, rate 1.6e-4.",
    "gpt3-6.7b": "GPT-3 of 6.7B parameters from scratch: batches of 2M tokens, rate 1.2e-4.",
    "gpt3-13b": "GPT-3 of 13B parameters from scratch: batches of 2M tokens, rate 1e-4.",
    "gpt3-175b": "GPT-3 of 175B parameters from scratch: batches of 3.2M tokens, rate 6e-5.",
}
LENGTH, TOKENS = 2048, 300e9
WARMUP, DECAY = 375e6, 260e9  # tokens
# rows per batch (256 rows are 0.5 million tokens), peak learning rate
SIZES = {
    "gpt3-small": (256, 6e-4),
    "gpt3-medium": (256, 3e-4),
    "gpt3-large": (256, 2.5e-4),
    "gpt3-xl": (512, 2e-4),
    "gpt3-2.7b": (512, 1.6e-4),
    "gpt3-6.7b": (1024, 1.2e-4),
    "gpt3-13b": (1024, 1e-4),
    "gpt3-175b": (1600, 0.6e-4),
}
# tokens of a source in billions, and its weight in percent (in the paper the rounded weights sum to 101)
SOURCES = {"common_crawl": (410, 60), "webtext2": (19, 22), "books1": (12, 8), "books2": (55, 8), "wikipedia": (3, 3)}


def mixture(data: str) -> Mixture:
    return Mixture(
        shares=tuple(
            Share(name=name, source=TextFiles(path=f"{data}/gpt3/{name}"), weight=weight)
            for name, (_, weight) in SOURCES.items()
        )
    )


def run(data: str = "data", name: str = "gpt3-small") -> Run:
    rows, rate = SIZES[name]

    def steps(tokens: float) -> int:
        return round(tokens / (rows * LENGTH))

    return Run(
        name=name,
        model=override(spec(name), NO_DROPOUT),
        vocabulary=TrainedBPE(size=50257),
        data=Data(train=mixture(data), valid=TextFiles(path=f"{data}/gpt3/valid")),
        objective=NextToken(apart=False),
        optimizer=AdamW(lr=rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1),
        schedule=Cosine(warmup=steps(WARMUP), floor=0.1, over=steps(DECAY)),
        batch=Batch(examples=rows, length=LENGTH, micro=8),
        steps=steps(TOKENS),
        precision="bf16-stream",
        compile=True,
        evaluate=Evaluate(every=1000, batches=16, patience=None),
        keep=Keep(every=1000),
    )
