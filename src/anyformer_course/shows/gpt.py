"""GPT in three lines: h0 = U We + Wp, h_l = block(h_(l-1)), P = softmax(h_n We^T), compared with the model."""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.look.figures import heat_maps
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._trained import describe
from anyformer_course.table import tiny
from anyformer_course.words import label_rows, split

FIRST = range(4)  # channels that are printed


def example(text: str = "the cat sat on the mat", *, tied: bool = True, seed: int = 0) -> Shown:
    """Compute the three lines by hand for a small GPT with random weights. `tied`: the output uses We again."""
    words = split(text)
    vocabulary = sorted({*words})
    spec = describe("gpt1", len(vocabulary))
    if not tied:
        spec = spec.replace(ties=())
    model = af.build(spec, seed=seed).eval()
    ids = torch.tensor([[vocabulary.index(word) for word in words]])
    with torch.no_grad():
        one_hot = torch.nn.functional.one_hot(ids[0], len(vocabulary)).float()  # U (T, V)
        embedding, position = model.embedding.tokens.weight, model.embedding.position.weight[: len(words)]
        run = af.trace(model, keep=("decoder.input", "decoder.layers.*"), input_ids=ids)
        states = [one_hot @ embedding + position]  # h0
        states += [run[f"decoder.layers.{i}"][0] for i in range(spec.decoder.depth)]
        by_hand = (states[-1] @ embedding.T).softmax(-1)
        chances = run.output.logits[0].softmax(-1)
    first = float((states[0] - run["decoder.input"][0]).abs().max())
    last = float((by_hand - chances).abs().max())
    output = "softmax(hn We^T)" if tied else "softmax(hn Wo^T), Wo: a second matrix"
    shapes = [
        ["U", "one-hot tokens", str(tuple(one_hot.shape)), None],
        ["We", "token embedding", str(tuple(embedding.shape)), embedding.numel()],
        [
            "Wp",
            "position embedding",
            str(tuple(model.embedding.position.weight.shape)),
            model.embedding.position.weight.numel(),
        ],
        ["h0", "U We + Wp", str(tuple(states[0].shape)), None],
        *(
            [f"h{i}", f"block {i}", str(tuple(state.shape)), block(model, i - 1)]
            for i, state in enumerate(states[1:], 1)
        ),
        ["P", output, str(tuple(chances.shape)), 0 if tied else model.head.out.weight.numel()],
    ]
    rows = label_rows(words, chances)

    def draw() -> Any:
        titles = ["h0", *(f"h{i}" for i in range(1, len(states))), "P"]
        return heat_maps([*(state[:, :24] for state in states), chances], titles, "GPT in three lines", words,
                         columns_are_tokens=False)  # fmt: skip

    return Shown(
        f"h0 by hand differs by {tiny(first)} from the model's; softmax(hn We^T) by at most {tiny(last)} from P",
        [
            Table("matrices", ("name", "meaning", "shape", "parameters"), shapes),
            Table(f"rows of We: the integer of a word is the number of its row; the first {len(FIRST)} of "
                  f"{embedding.shape[1]} numbers", ("word", "integer", *FIRST),
                  [[word, i, *embedding[i, FIRST].tolist()] for word, i in zip(words, ids[0].tolist(), strict=True)]),
            Table("P: next word after each word (random weights)", ("after", *vocabulary), rows),
        ],
        draw,
    )  # fmt: skip


def block(model: Any, index: int) -> int:
    return sum(parameter.numel() for parameter in model.decoder.layers[index].parameters())
