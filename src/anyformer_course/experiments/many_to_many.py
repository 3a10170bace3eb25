"""Many-to-many: learning all directions translates between other languages better than going through English.

Two encoder-decoders of the same size learn the same number of sentence pairs of made-up languages (`LanguageFamily`)
for the same number of steps: one only pairs with English, one pairs of all directions [Fan et al. 2020]. Both translate
unseen sentences between two languages that are not English. The English-centric model does it directly, which it never
learned, or in two steps through English. In a second setting English has fewer words than the other languages, so that
the way through English loses meaning; it is reported, but not judged. Measured is the share of right words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyformer.data import Data, JSONLines, Words
from anyformer.generation import generate
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values, write
from anyformer.look import figures
from anyformer.models import Model
from anyformer.objectives.translate import Translate
from anyformer.parts.position.absolute import Sinusoidal
from anyformer.specs.codec import override
from anyformer.train.trainer import Trainer
from anyformer_course.lab.language_family import ENGLISH, LanguageFamily, ask, word_accuracy
from anyformer_course.lab.narang_changes import TableSize, vanilla
from anyformer_course.lab.runs import mean

CLAIM = (
    "if English expresses everything, then with every seed the many-to-many model has more right words between other "
    "languages than the English-centric model has, directly or through English, and at most 2 points fewer in "
    "directions with English; judged if the English-centric model has learned: at least 80 % with English"
)
FORMS = {
    "tiny": Form(
        0.2, 0.1,
        {"languages": 3, "concepts": 6, "pairs": 60, "width": 24, "depth": 1, "steps": 2, "batch": 4, "asked": 1},
    ),
    "medium": Form(
        6, 1,
        {"languages": 4, "concepts": 12, "pairs": 4000, "width": 48, "depth": 2, "steps": 1500, "batch": 32,
         "asked": 8, "seeds": 2},
    ),
    "full": Form(
        240, 3,
        {"languages": 6, "concepts": 120, "pairs": 60000, "width": 192, "depth": 3, "steps": 4000, "batch": 128,
         "asked": 20, "seeds": 3},
    ),
}  # fmt: skip
KINDS = ("many-to-many", "English-centric")
ENGLISHES = {"complete": 0.0, "with fewer words": 0.25}  # share of the concepts whose difference English cannot express
WORDS = Words(special={"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"})
trials = TrialGrid("{kind}-{english}-{seed}", kind=KINDS, english=ENGLISHES, seed="seeds")


def family(values: Values) -> LanguageFamily:
    merged = round(values["concepts"] * ENGLISHES[values["english"]] / 2)
    return LanguageFamily(languages=values["languages"], concepts=values["concepts"], merged=merged)


def work(values: Values, place: Place) -> list[Row]:
    languages, width, batch = family(values), values["width"], values["batch"]
    size = TableSize(
        width=width, inner=4 * width, heads=6, head_width=width // 6, depth=values["depth"],
        vocabulary=languages.languages * (languages.concepts + 1) + len(WORDS.special), length=16,
    )  # fmt: skip
    run = training_run(
        "languages", model_spec(size), pairs(values, place), place.device, steps=values["steps"], batch=batch,
        length=16, lr=min(0.15 / width, 3e-3), objective=Translate(smoothing=0.0), vocabulary=WORDS,
        seed=values["seed"],
    )  # fmt: skip
    trainer = place.train(run)
    ways = {"direct": translate}
    if values["kind"] == "English-centric":
        ways["through English"] = translate_through_english
    rows: list[Row] = []
    for group, english in (("with English", True), ("others", False)):
        directions = languages.directions(english)
        draw = np.random.default_rng(10**6 + values["seed"])
        asked = [(languages.draw_meaning(draw), *each) for each in directions for _ in range(values["asked"])]
        sources = [languages.sentence(meaning, source) for meaning, source, _ in asked]
        wanted = [languages.sentence(meaning, target) for meaning, _, target in asked]
        for way, function in ways.items():
            if way == "direct" or group == "others":
                written = function(trainer, sources, [target for *_, target in asked])
                right = [word_accuracy(a, b) for a, b in zip(written, wanted, strict=True)]
                exact = mean([float(each == 1) for each in right])
                rows.append({"directions": group, "way": way, "words": mean(right), "sentences": exact})
    return rows


def model_spec(size: TableSize) -> Model:
    """Return an encoder-decoder with sinusoids: a language's word order is about places in a sentence, which the
    baseline's relative positions do not tell to cross-attention."""
    position = Sinusoidal(length=2 * size.length)
    return override(vanilla(size), {"embedding.position": position, "decoder_embedding.position": position})


def pairs(values: Values, place: Place) -> Data:
    """Return the sentence pairs of a model. Validation pairs have the same directions."""
    languages = family(values)
    directions = languages.directions(True if values["kind"] == "English-centric" else None)
    name = f"{values['kind']}-{values['english']}".replace(" ", "-")

    def make(folder: Path) -> None:
        for part, number, seed in (("train", values["pairs"], 0), ("valid", 64, 1)):
            lines = [json.dumps(each) for each in languages.examples(directions, number, seed)]
            write(folder / f"{part}.jsonl", "\n".join(lines) + "\n")

    folder = Path(place.data(name, make)) / name
    return Data(train=JSONLines(path=str(folder / "train.jsonl")), valid=JSONLines(path=str(folder / "valid.jsonl")))


def translate(trainer: Trainer, sentences: Sequence[str], targets: Sequence[int]) -> list[str]:
    """Translate each sentence into its target language by greedy decoding."""
    tokenizer, written = trainer.tokenizer, list[str]()
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    for start in range(0, len(sentences), 256):
        asked = [ask(*each) for each in zip(sentences[start : start + 256], targets[start : start + 256], strict=True)]
        rows = [[*tokenizer.encode(text, add_special_tokens=False), end] for text in asked]
        width = max(map(len, rows))
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=trainer.device)
        with trainer.eval_mode():
            found = generate(
                trainer.model, input_ids=ids, attention_mask=(ids != pad).long(), max_new_tokens=16, do_sample=False,
                eos_token_id=end, pad_token_id=pad,
            )  # fmt: skip
        written += [tokenizer.decode(row, skip_special_tokens=True) for row in found.tolist()]
    return written


def translate_through_english(trainer: Trainer, sentences: Sequence[str], targets: Sequence[int]) -> list[str]:
    english = translate(trainer, sentences, [ENGLISH] * len(sentences))
    return translate(trainer, english, targets)


# -- results ----------------------------------------------------------------------------------------------------------


def right_words(rows: Sequence[Row], english: str, kind: str, directions: str, way: str = "direct") -> list[float]:
    """Return the share of right words of every seed."""
    wanted = {"english": english, "kind": kind, "directions": directions, "way": way}
    return [row["words"] for row in rows if all(row[name] == value for name, value in wanted.items())]


def claim(rows: Sequence[Row]) -> Verdict:
    cases = [("many-to-many", "others", "direct"), ("English-centric", "others", "direct"),
             ("English-centric", "others", "through English"), ("many-to-many", "with English", "direct"),
             ("English-centric", "with English", "direct")]  # fmt: skip
    shares = {(english, *case): right_words(rows, english, *case) for english in ENGLISHES for case in cases}
    many, direct, pivot, own, centric = (shares["complete", *case] for case in cases)
    ahead = all(a > max(b, c) for a, b, c in zip(many, direct, pivot, strict=True))
    close = all(a >= b - 0.02 for a, b in zip(own, centric, strict=True))
    names = {case: f"{case[0]}, {case[1]}, {case[2]}, English {case[3]}"
             for case in ((kind, group, way, english) for english, kind, group, way in shares)}  # fmt: skip
    figures = {
        f"right words, {names[kind, group, way, english]}": mean(each)
        for (english, kind, group, way), each in shares.items()
    }
    gap = min(a - c for a, c in zip(many, pivot, strict=True))
    learned = min(centric) >= 0.8
    return Verdict(
        ahead and close, {**figures, "many-to-many minus through English, smallest of all seeds": gap}, learned
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 12, 3.5)
    bars = [("many-to-many", "others", "direct"), ("English-centric", "others", "through English"),
            ("English-centric", "others", "direct"), ("many-to-many", "with English", "direct"),
            ("English-centric", "with English", "direct")]  # fmt: skip
    for axis, english in zip(axes[0], ENGLISHES, strict=True):
        for number, (kind, group, way) in enumerate(bars):
            values = right_words(rows, english, kind, group, way)
            axis.plot(values, [f"{kind}, {group}, {way}"] * len(values), "o", color=f"C{number}")
        axis.set(title=f"right words, English {english}", xlim=(-0.02, 1.02))
        axis.invert_yaxis()
        axis.grid(alpha=0.3)
    return figure
