"""Zero, one or a few examples in the prompt, without gradient updates, compared with fine-tuning.

Every language has three dialects, and half of the words differ between them. A small GPT learns to translate from many
prompts. A description names the language; only examples show the dialect. Fine-tuning changes the weights instead.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer.look.figures import new
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import describe

WORDS, LANGUAGES, DIALECTS = 8, 2, 3
NOTHING, FOREIGN = WORDS + LANGUAGES, WORDS + LANGUAGES + 1  # ids: words, names of languages, "no name", translations
NAMES = ("cheese", "otter", "mint", "plush", "giraffe", "river", "king", "magic")


def example(*, steps: int = 100, shots: int = 5, seed: int = 0) -> Shown:
    """Train for `steps` steps, then measure how many translations are right after 0 to `shots` examples."""
    if not 1 <= shots <= WORDS - 1:
        raise ValueError(f"shots is {shots}; it must be 1 to {WORDS - 1}")
    draws = torch.Generator().manual_seed(seed)
    dictionary = words_of(draws)  # (languages, dialects, words)
    model: Any = af.build(describe("gpt2", FOREIGN + LANGUAGES * (DIALECTS + 1) * WORDS, width=32), seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=True)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * (1 - step / steps)
        ids, _ = prompts(dictionary, draws, 56)
        update(model, optimizer, ids)
    model.eval()
    test, kinds = prompts(dictionary, torch.Generator().manual_seed(9), 300)
    with torch.no_grad():
        right = model(input_ids=test).logits[:, 1::2].argmax(-1) == test[:, 2::2]  # (prompts, examples read)
    named = kinds[:, 2].bool()
    rows = [[n, float(right[named, n].float().mean()), float(right[~named, n].float().mean()), 0]
            for n in range(shots + 1)]  # fmt: skip
    language = 0
    dialects = [
        torch.stack([torch.full((WORDS,), language + WORDS), torch.arange(WORDS), own], 1)  # name, word, answer
        for own in dictionary[language]
    ]
    pairs = min(dialects, key=lambda each: zero_shot(model, each))  # the dialect that needs examples most
    tuned, before = copy.deepcopy(model), zero_shot(model, pairs)
    optimizer = torch.optim.AdamW(tuned.parameters(), lr=1e-3)
    updates = 20
    for _ in range(updates):
        update(tuned, optimizer, pairs)
    after = zero_shot(tuned, pairs)

    def draw() -> Any:
        figure, axes = new(1, 1, 7, 3.8)
        axes[0, 0].plot([row[0] for row in rows], [row[1] for row in rows], "o-", label="with the name of the language")
        axes[0, 0].plot([row[0] for row in rows], [row[2] for row in rows], "o--", label="without it")
        axes[0, 0].plot(0, after, "r*", markersize=12, label=f"fine-tuned on one dialect ({amount(updates, 'update')})")
        axes[0, 0].set(xlabel="examples in the prompt", ylabel="right translations", ylim=(0, 1.05))
        axes[0, 0].legend(fontsize=8)
        return figure

    prompt = [[0, f"language {language + 1}:", None]] + [
        [i + 1, NAMES[i], f"word {int(pairs[i, 2])}"] for i in range(min(shots, 3))
    ]
    return Shown(
        f"with the name of the language {100 * rows[0][1]:.0f} % of the translations are right after 0 examples, "
        f"{100 * rows[1][1]:.0f} % after 1 and {100 * rows[-1][1]:.0f} % after {shots}, without any gradient update; "
        f"fine-tuning raises one dialect from {100 * before:.0f} to {100 * after:.0f} % with "
        f"{amount(updates, 'update')}.",
        [
            Table("examples in the prompt", ("examples", "right, with the name of the language", "right, without it",
                                             "gradient updates"), rows),
            Table("fine-tuning on one dialect, then no examples", ("model", "right", "gradient updates"),
                  [["before", before, 0], ["after", after, updates]]),
            Table("a prompt with examples", ("example", "word", "translation"), prompt),
        ],
        draw,
    )  # fmt: skip


def words_of(draws: torch.Generator) -> Tensor:
    """Return the translations (languages, dialects, words): half are common to the dialects of a language."""
    ids = torch.arange(LANGUAGES * (DIALECTS + 1) * WORDS).view(LANGUAGES, DIALECTS + 1, WORDS) + FOREIGN
    common = torch.rand(LANGUAGES, 1, WORDS, generator=draws).argsort(-1) < WORDS // 2
    return torch.where(common, ids[:, :1], ids[:, 1:])


def prompts(dictionary: Tensor, draws: torch.Generator, number: int) -> tuple[Tensor, Tensor]:
    """Return ids (number, 1 + 2 words): a name or "no name", then pairs; and language, dialect, whether it is named."""
    language = torch.randint(0, LANGUAGES, (number,), generator=draws)
    dialect = torch.randint(0, DIALECTS, (number,), generator=draws)
    named = torch.rand(number, generator=draws) < 0.5
    words = torch.rand(number, WORDS, generator=draws).argsort(-1)
    answers = dictionary[language, dialect].gather(1, words)
    first = torch.where(named, language + WORDS, NOTHING)
    return torch.cat((first[:, None], torch.stack((words, answers), 2).flatten(1)), 1), torch.stack(
        (language, dialect, named.long()), 1)  # fmt: skip


def update(model: Any, optimizer: Any, ids: Tensor) -> None:
    """Take one step; only translations are predicted."""
    scores = model(input_ids=ids).logits[:, 1:-1:2]
    loss = F.cross_entropy(scores.flatten(0, 1), ids[:, 2::2].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.no_grad()
def zero_shot(model: Any, pairs: Tensor) -> float:
    return float((model(input_ids=pairs).logits[:, 1].argmax(-1) == pairs[:, 2]).float().mean())
