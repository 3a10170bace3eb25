"""ELECTRA's replaced tokens: a small generator fills masked words, and the model must find the words that changed.

The generator is a small BERT, trained in a second on the lines of `corpus`. A word that it fills correctly counts as
original. Every word gives a label, not only the masked ones [Clark et al. 2020].
"""

from __future__ import annotations

from typing import Any

import torch

from anyformer.look.figures import new
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import STORIES, train


def example(
    text: str = "the dog chased the ball .",
    *,
    rate: float = 0.3,
    draws: int = 200,
    seed: int = 0,
    corpus: str = STORIES,
) -> Shown:
    """Mask `rate` of the words, fill them from the generator's probabilities, and repeat `draws` times."""
    if not 0 < rate <= 1 or not 1 <= draws <= 2000:
        raise ValueError("rate must be above 0 and at most 1, and draws from 1 to 2000")
    generator = train("bert", corpus)
    words, ids = generator.words(text), torch.tensor(generator.ids(text))
    T, number = len(ids), max(1, round(rate * len(ids)))
    random = torch.Generator().manual_seed(seed)
    rows = torch.stack([torch.randperm(T, generator=random)[:number] for _ in range(draws)])  # (N, M) masked places
    masked = ids.repeat(draws, 1).scatter(1, rows, 3)  # 3: [MASK]
    ends = torch.tensor([[1], [2]]).repeat(1, draws)[..., None]
    with torch.no_grad():
        scores = generator.model(input_ids=torch.cat((ends[0], masked, ends[1]), 1)).prediction_logits[:, 1:-1]
    scores[..., :4] = float("-inf")  # no marks
    samples = torch.multinomial(scores.softmax(-1).flatten(0, 1), 1, generator=random).view(draws, T)
    filled = torch.where(masked == 3, samples, ids)
    replaced = filled != ids  # (N, T) labels of the discriminator
    by_word = replaced.float().mean(0)
    kept = 1 - float(replaced.sum()) / (draws * number)

    def draw() -> Any:
        figure, axes = new(1, 1, 8, 2.8)
        axes[0, 0].bar(range(T), [100 * each for each in by_word.tolist()])
        axes[0, 0].set_xticks(range(T), words)
        axes[0, 0].set_title(f"replaced by another word, % of {draws} draws", fontsize=10)
        return figure

    labels = ["replaced" if each else "original" for each in replaced[0].tolist()]
    reads = [[generator.tokens[int(i)] for i in each[0]] for each in (masked, filled)]
    first = list(zip(words, *reads, labels, by_word.tolist(), strict=True))
    return Shown(
        f"In {amount(draws, 'draw')} of {amount(number, 'masked word')} the generator fills {100 * kept:.0f} % as they "
        f"were. BERT learns from {number} of {T} positions, ELECTRA from all {T}.",
        [
            Table("the first draw", ("word", "generator reads", "discriminator reads", "label", "share replaced"),
                  first),
            Table("positions with a loss", ("objective", "positions", "share"),
                  [["masked words (BERT)", number, number / T], ["replaced words (ELECTRA)", T, 1.0]]),
        ],
        draw,
    )  # fmt: skip
