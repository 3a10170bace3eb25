"""Draw emoji with a run of the recipe `emoji-dit`, and measure whether the pictures show their texts.

    python benchmarks/emoji_dit.py runs/emoji-dit --data data [--count 64] [--sheet sheet.png] [--out figures.json]

Names of training and held-out faces (`anyformer fetch emoji`) are drawn. The color of a face says its mood: red is
angry, blue cold, green sick, else yellow. A picture has the mood of the color that is nearest to its median color.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

import anyformer as af
from anyformer.inputs.contact_sheet import write_sheet
from anyformer.train.run import read_run
from anyformer_course.data.drawings import COLOURS, SKIN

MOODS = {mood.strip(): np.asarray(COLOURS[colour]) for mood, colour in SKIN.items()}  # the usual mood is ""
SHOWN = ("smiling face", "angry frowning face", "cold surprised face", "sick neutral face", "red heart", "blue star",
         "flag: Italy", "full moon")  # fmt: skip


def mood_of(name: str) -> str:
    return next((mood for mood in MOODS if mood and name.startswith(mood)), "")


def mood_shown(picture: np.ndarray) -> str:
    """Return the mood of the nearest color to the median color of the middle of a picture (H, W, 3)."""
    side = len(picture)
    middle = picture[side // 8 : -side // 8, side // 8 : -side // 8].reshape(-1, 3)
    color = np.median(middle, axis=0)
    return min(MOODS, key=lambda mood: float(np.square(MOODS[mood] - color).sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", default="data")
    parser.add_argument("--count", type=int, default=64, help="names of each kind (default: 64)")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--sheet", help="write four pictures of each of eight texts to this file")
    parser.add_argument("--out", help="write the figures to this file")
    options = parser.parse_args()
    with gzip.open(Path(options.data) / "drawn_emoji" / "captions.jsonl.gz", "rt", encoding="utf-8") as file:
        names = [row["name"] if row["subcategory"] == "face" else None for row in map(json.loads, file)]
    images = np.load(Path(options.data) / "drawn_emoji" / "emoji32.npz")["images"]
    parts = {
        "trained": [i for i, name in enumerate(names) if name and i % 10][: options.count],
        "held out": [i for i, name in enumerate(names) if name and not i % 10][: options.count],
    }
    model: Any = af.tasks.open_model(options.run, batch=64)
    shares: dict[str, float] = {}
    real = [mood_shown(images[i]) == mood_of(names[i] or "") for i in (*parts["trained"], *parts["held out"])]
    shares["the drawings themselves"] = float(np.mean(real))
    for guidance in (4.0, 1.0):
        for part, rows in parts.items():
            texts = [names[i] or "" for i in rows]
            drawn = af.tasks.draw(model, texts, out=None, steps=options.steps, guidance=guidance)
            right = [mood_shown(each["pictures"][0]) == mood_of(text) for each, text in zip(drawn, texts, strict=True)]
            shares[f"{part}, guidance {guidance:g}"] = float(np.mean(right))
    run = read_run(Path(options.run) / "run.json")
    training = {
        "parameters": af.count(run.model).parameters,
        "steps": run.steps,
        "pictures per step": run.batch.examples,
    }
    figures = {"shares": shares, "training": training, "texts": SHOWN}
    print(json.dumps(figures, indent=1))
    if options.out:
        Path(options.out).write_text(json.dumps(figures, indent=1) + "\n")
    if options.sheet:
        drawn = af.tasks.draw(model, [*SHOWN], out=None, count=4, steps=options.steps)
        write_sheet(options.sheet, [each["pictures"].repeat(4, axis=1).repeat(4, axis=2) for each in drawn])


if __name__ == "__main__":
    main()
