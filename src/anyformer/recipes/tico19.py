"""Translate between six languages, all directions (TICO-19, 2,692 sentences): language-specific layers, as in M2M-100.

A source begins with a token that names the target language. The last encoder layer and its feed-forward weights are
separate for each target language; all other weights are shared [Fan et al. 2020]. So few sentences are too few for good
translations: the recipe shows the system.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

from anyformer import families
from anyformer.data import TSV, Data, Held, Mixture, Share, Source, TextToText, TrainedBPE
from anyformer.objectives.translate import Translate
from anyformer.parts import LanguageSpecific
from anyformer.recipes.multi30k_en_de import CONFIG, RATE, WARMUP, WIDTH
from anyformer.specs.codec import override
from anyformer.train.optim import AdamW, Noam
from anyformer.train.run import Batch, Evaluate, Keep, Run

LANGUAGES = ("en", "fr", "es", "pt", "id", "sw")
SPECIAL = {"eos_token": "</s>", "pad_token": "<pad>"}
TOKENS = {language: f"<extra_id_{i}>" for i, language in enumerate(LANGUAGES)}  # the language tokens
SIZE = 6000


def directions(source: Source) -> Mixture:
    """Return the pairs of all directions, one share per direction."""
    pairs = permutations(LANGUAGES, 2)
    tasks = {f"{a}-{b}": TextToText(source=source, reads=f"{TOKENS[b]} {{{a}}}", writes=f"{{{b}}}") for a, b in pairs}
    return Mixture(shares=tuple(Share(name=name, source=task) for name, task in tasks.items()))


def model_spec() -> Any:
    spec: Any = families.find("m2m_100").read({**CONFIG, "vocab_size": SIZE})
    last, first = spec.encoder.depth - 1, len(SPECIAL)
    tokens = tuple(range(first, first + len(LANGUAGES)))
    layer = LanguageSpecific(op=spec.encoder.layers.steps["feedforward"].op, tokens=tokens)
    return override(spec, {f"encoder.layers.{last}.feedforward.op": layer})


def run(data: str = "data") -> Run:
    # the file's header has "id" twice; with `names` the header is one more row
    names = ("line", "en", "fr", "es", "pt", "ru", "zh", "hi", "id", "ar", "sw")
    sentences = TSV(path=f"{data}/mt_tico19/tico19.tsv.gz", names=names)
    return Run(
        name="tico19",
        model=model_spec(),
        vocabulary=TrainedBPE(size=SIZE, special=SPECIAL, end="eos_token", sentinels=len(LANGUAGES)),
        data=Data(
            train=directions(Held(source=sentences, one_in=20)),
            valid=directions(Held(source=sentences, one_in=20, out=True)),
        ),
        objective=Translate(smoothing=0.1, length=128, target_length=128),
        optimizer=AdamW(lr=RATE * (WIDTH * WARMUP) ** 0.5, betas=(0.9, 0.98), weight_decay=0.0),
        schedule=Noam(width=WIDTH, warmup=WARMUP),
        batch=Batch(examples=128),
        steps=6000,
        ema=0.999,
        evaluate=Evaluate(every=1000, batches=16, metrics=("perplexity",)),
        keep=Keep(every=1000),
    )
