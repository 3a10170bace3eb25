"""Cross-attention: each word of the decoder attends to the words that the encoder read.

A small encoder-decoder learns in two seconds to write a text backwards. Queries come from the decoder, keys and values
from the encoder, so the weights have one row per written word and one column per word of the source.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import anyformer as af
from anyformer import families
from anyformer.look.figures import heat_maps
from anyformer.specs.field_types import Count
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import number
from anyformer_course.words import split


def example(
    text: str = "the detective investigated a murder", *, steps: int = 120, width: Count = 32, seed: int = 0
) -> Shown:
    """Train on shuffled words of the text to write them backwards, then show cross-attention for the text itself."""
    words = split(text, 8)
    if len(words) < 2 or not 0 <= steps <= 500:
        raise ValueError("write at least two words; steps must be from 0 to 500")
    vocabulary, ids = number(words)
    vocab_size, start = len(vocabulary) + 1, len(vocabulary)  # the last token starts every answer
    model = af.build(description(vocab_size, start, width), seed=seed)
    draws, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters(), lr=4e-3)
    losses = []
    for _ in range(steps):
        source = torch.randint(len(vocabulary), (48, len(words)), generator=draws)
        target = source.flip(1)
        logits = model(input_ids=source, decoder_input_ids=shift(target, start)).logits
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    answer = ids.flip(1)
    with torch.no_grad():
        run = af.trace(
            model, keep="decoder.layers.*.cross.op.weights", input_ids=ids, decoder_input_ids=shift(answer, start)
        )
    written = [vocabulary[i] if i < start else "<start>" for i in run.output.logits[0].argmax(-1).tolist()]
    weights = run["decoder.layers.0.cross.op.weights"][0].mean(0)  # (T, S)
    best = [words[i] for i in weights.argmax(-1).tolist()]
    right = sum(one == other for one, other in zip(written, words[::-1], strict=True))
    places = sum(int(i) == len(words) - 1 - row for row, i in enumerate(weights.argmax(-1)))

    progress = [[i + 1, losses[i]] for i in range(0, steps, max(steps // 6, 1))]

    def draw() -> Any:
        figure = heat_maps([weights], ["cross-attention"], "rows: written, columns: source", limits=(0, 1))
        figure.set_size_inches(5, 4.2)
        for ticks, names in ((figure.axes[0].set_xticks, words), (figure.axes[0].set_yticks, written)):
            ticks(range(len(names)), names, fontsize=8)
        return figure

    return Shown(
        f"After {amount(steps, 'step')} {right} of {len(words)} written words are right, and for {places} of them "
        f"the largest weight is at the word that is copied.",
        [
            Table(
                "weights", ("written", *words, "attends most to"),
                [[word, *row, top] for word, row, top in zip(written, weights.tolist(), best, strict=True)],
            ),
            Table(
                "where they come from", ("tensor", "computed from", "shape"),
                [
                    ["q", "decoder", f"{len(words)} x {width}"], ["k and v", "encoder", f"{len(words)} x {width}"],
                    ["weights", "q and k", f"{len(words)} x {len(words)}"],
                ],
            ),
            Table("training", ("step", "loss"), progress or [[0, None]]),
        ],
        draw,
    )  # fmt: skip


def shift(target: torch.Tensor, start: int) -> torch.Tensor:
    """Return the decoder's input: the start token, then the answer without its last word."""
    return torch.cat((torch.full_like(target[:, :1], start), target[:, :-1]), 1)


def description(vocab_size: int, start: int, width: int) -> Any:
    """Return the Transformer of 2017 with one layer in the encoder and one in the decoder."""
    sides = {"layers": 1, "attention_heads": 2, "ffn_dim": 2 * width}
    config = {
        "architectures": ["MarianMTModel"], "vocab_size": vocab_size, "d_model": width, "max_position_embeddings": 32,
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()},
        "dropout": 0.0, "attention_dropout": 0.0, "scale_embedding": True, "decoder_start_token_id": start,
        "pad_token_id": start, "eos_token_id": start, "forced_eos_token_id": None, "init_std": width**-0.5,
        "activation_function": "relu",
    }  # fmt: skip
    return families.find("marian").read(config)
