"""Evaluate a CLIP trained on emoji (recipe `emoji`): matching names and images of training pairs and of held-out pairs,
and zero-shot classification of images into subcategories.

    python benchmarks/emoji.py runs/emoji --data data [--out emoji.json] [--device cuda]
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

import anyformer as af
from anyformer.data import JSONLines
from anyformer.train.run import read_run


def ranks(scores: np.ndarray, names: list[str]) -> np.ndarray:
    """(N, N) scores of pairs -> (N,) number of wrong candidates that score higher than the right one. Candidates with
    the same name count as right."""
    other = np.asarray(names)[:, None] != np.asarray(names)[None]
    return ((scores > scores.diagonal()[:, None]) & other).sum(1)


def shares(scores: np.ndarray, names: list[str]) -> dict[str, float]:
    """Top-1 and top-5 accuracy of finding the name of an image and the image of a name."""
    found = {"image to text": ranks(scores, names), "text to image": ranks(scores.T, names)}
    return {f"{way}, top {k}": float((rank < k).mean()) for way, rank in found.items() for k in (1, 5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", default="data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", help="write the figures to this file")
    options = parser.parse_args()
    folder = Path(options.data) / "image_text_emoji"
    pictures = list(np.load(folder / "emoji32.npz")["images"])
    captions = folder / "captions.jsonl.gz"
    with gzip.open(captions, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    model: Any = af.tasks.open_model(options.run, device=options.device, batch=256)
    images = np.stack(af.tasks.embed_image(model, pictures))
    names = [row["name"] for row in rows]
    texts = np.stack(af.tasks.embed(model, names))
    images, texts = (each / np.linalg.norm(each, axis=-1, keepdims=True) for each in (images, texts))
    valid: Any = read_run(Path(options.run) / "run.json").data.valid
    split = valid.replace(source=JSONLines(path=str(captions))).rows(("name",))
    held_names = {row.example["name"] for row in split if row.example is not None}
    held = np.asarray([name in held_names for name in names])
    figures: dict[str, Any] = {}
    for part, which in (("taught", np.flatnonzero(~held)), ("held out", np.flatnonzero(held))):
        chosen = [names[i] for i in which]
        figures[part] = {"pairs": len(which), **shares(images[which] @ texts[which].T, chosen)}
    kinds = sorted({row["subcategory"] for row in rows})
    queries = np.stack(af.tasks.embed(model, [kind.replace("-", " ") for kind in kinds]))
    best = (images @ (queries / np.linalg.norm(queries, axis=-1, keepdims=True)).T).argmax(1)
    right = np.asarray([kinds[i] == row["subcategory"] for i, row in zip(best, rows)])
    figures["subcategory"] = {"kinds": len(kinds), "taught": right[~held].mean(), "held out": right[held].mean()}
    by_kind = {kind: [ok for ok, row in zip(right, rows) if row["subcategory"] == kind] for kind in kinds}
    figures["by subcategory"] = {kind: [int(sum(found)), len(found)] for kind, found in by_kind.items()}
    print(json.dumps({name: value for name, value in figures.items() if name != "by subcategory"}, indent=1))
    if options.out:
        Path(options.out).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
