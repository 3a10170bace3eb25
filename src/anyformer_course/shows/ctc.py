"""CTC: the probability of a text is the sum over all ways to spread its letters over the frames.

Each frame has probabilities of letters and of a blank. A path's text is the path with repeats merged and blanks
removed. The sum over all paths is counted one by one here and compared with torch's CTC loss [Graves et al. 2006].
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table

BLANK = "_"
LIMIT = 300_000  # paths


def example(text: str = "see", *, frames: int = 6, seed: int = 0) -> Shown:
    """Add up the paths of `text` over `frames` frames with random probabilities."""
    letters = [BLANK, *dict.fromkeys(text)]
    if not text.strip():
        raise ValueError("the text is empty; write a few letters")
    if BLANK in text or len(letters) ** frames > LIMIT:
        raise ValueError(f"{len(letters) - 1} letters and {frames} frames are too many paths (or none); use fewer")
    least = len(text) + sum(a == b for a, b in itertools.pairwise(text))
    if frames < least:
        raise ValueError(f"{text!r} needs at least {least} frames (a blank between equal letters), got {frames}")
    logs = torch.randn(frames, len(letters), generator=torch.Generator().manual_seed(seed)).log_softmax(-1)
    paths = {}
    for path in itertools.product(range(len(letters)), repeat=frames):
        if collapse([letters[i] for i in path]) == text:
            paths["".join(letters[i] for i in path)] = float(logs[range(frames), path].sum().exp())
    total = sum(paths.values())
    target = torch.tensor([letters.index(letter) for letter in text])
    loss = torch.nn.functional.ctc_loss(logs[:, None], target[None], torch.tensor([frames]), torch.tensor([len(text)]),
                                        reduction="sum")  # fmt: skip
    by_torch = float((-loss).exp())
    best = sorted(paths.items(), key=lambda each: -each[1])[:6]
    greedy = [letters[i] for i in logs.argmax(-1).tolist()]

    def draw() -> Any:
        figure, axes = new(2, 1, 10, 3.4)
        axes[0, 0].imshow(logs.exp().T.numpy(), cmap="Blues", vmin=0, vmax=1)
        axes[0, 0].set_yticks(range(len(letters)), letters)
        axes[0, 0].set(xlabel="frame", title="probability of each letter in each frame")
        axes[0, 1].barh([name for name, _ in best][::-1], [p for _, p in best][::-1])
        axes[0, 1].set_title(f"the most likely of {len(paths)} paths of '{text}'")
        return figure

    return Shown(
        f"{len(paths)} of {len(letters) ** frames:,} paths give {text!r}; together they have probability {total:.3g}, "
        f"torch's CTC loss gives {by_torch:.3g}; the best single letters of all frames give {collapse(greedy)!r}.",
        [
            Table("the most likely paths of the text", ("path", "probability"), [list(each) for each in best]),
            Table("probabilities (random, as before training)", ("letter", *(f"frame {t}" for t in range(frames))),
                  [[letter, *logs[:, i].exp().tolist()] for i, letter in enumerate(letters)]),
            Table("sum", ("what", "number"), [["paths", len(paths)], ["sum of the paths", total],
                                              ["exp(-CTC loss) of torch", by_torch]]),
        ],
        draw,
    )  # fmt: skip


def collapse(path: list[str]) -> str:
    return "".join(letter for letter, _ in itertools.groupby(path) if letter != BLANK)
