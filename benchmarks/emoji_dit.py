"""Draw emoji with a run of the recipe `emoji-dit`, and measure whether the pictures show their texts.

    python benchmarks/emoji_dit.py runs/emoji-dit --data data [--count 64] [--sheet sheet.png] [--out figures.json]

Names of faces (`anyformer fetch emoji`) are drawn: some that the run trained on, some that it held out. The color of
a face shows its mood: red is angry, blue cold, green sick, yellow any other. The mood of a picture is the one whose
color is nearest to its median color.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import anyformer as af
from anyformer.data import Arrays, Beside, JSONLines
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


def faces(split: Any, data: str, count: int) -> list[dict[str, Any]]:
    """Return the image and the name of the first faces in a part of the run's data."""
    folder = Path(data) / "drawn_emoji"
    images = Arrays(path=str(folder / "emoji32.npz"), fields={"image": "images"})
    every = Beside(sources=(images, JSONLines(path=str(folder / "captions.jsonl.gz"))))
    rows = (row.example for row in split.replace(source=every).rows(("image", "name", "subcategory")))
    return [row for row in rows if row is not None and row["subcategory"] == "face"][:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", default="data")
    parser.add_argument("--count", type=int, default=64, help="names of each kind (default: 64)")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--sheet", help="write four pictures of each of eight texts to this file")
    parser.add_argument("--out", help="write the figures to this file")
    options = parser.parse_args()
    run = read_run(Path(options.run) / "run.json")
    parts = {
        "trained": faces(run.data.train, options.data, options.count),
        "held out": faces(run.data.valid, options.data, options.count),
    }
    model: Any = af.tasks.open_model(options.run, batch=64)
    shares: dict[str, float] = {}
    real = [mood_shown(row["image"]) == mood_of(row["name"]) for rows in parts.values() for row in rows]
    shares["the drawings themselves"] = float(np.mean(real))
    for guidance in (4.0, 1.0):
        for part, rows in parts.items():
            texts = [row["name"] for row in rows]
            drawn = af.tasks.draw(model, texts, out=None, steps=options.steps, guidance=guidance)
            right = [mood_shown(each["pictures"][0]) == mood_of(text) for each, text in zip(drawn, texts, strict=True)]
            shares[f"{part}, guidance {guidance:g}"] = float(np.mean(right))
    training = {
        "parameters": sum(weight.numel() for weight in model.model.parameters()),
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
