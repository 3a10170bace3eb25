"""The stepper: the parts of a text that it keeps in addition to the model's state."""

from __future__ import annotations

import pytest
import torch

from anyformer.generation.stepper import Stepper
from small import close
from writers import decoder, ids


@pytest.mark.parametrize(("use_cache", "segments"), [(False, False), (True, True), (False, True)])
@torch.no_grad()
def test_texts_that_join_go_on_as_they_would_alone(use_cache: bool, segments: bool) -> None:
    """The stepper keeps all tokens (without a cache) and the last segment of each prompt. When the longest text is
    removed, `trim` removes its columns."""
    model, tokens, steppers = decoder(), torch.tensor([7, 8, 9]), []
    for length in (3, 9, 2):
        source = {"token_type_ids": torch.arange(5, 5 + length)[None]} if segments else {}
        steppers.append(Stepper(model, source, use_cache))
        steppers[-1].begin(ids(1, length, seed=length), None)
    alone = [each.fork() for each in steppers]
    first, *others = steppers
    first.join(others)
    expected = [each.step(token) for each, token in zip(alone, tokens.split(1), strict=True)]
    close(first.step(tokens), torch.cat(expected), 1e-5)
    first.reorder(torch.tensor([0, 2]))
    first.trim()
    assert first.length == 4
    close(first.step(tokens[:2]), torch.cat((alone[0].step(tokens[:1]), alone[2].step(tokens[1:2]))), 1e-5)
    first.reorder(torch.tensor([1]))
    for _ in range(2):  # the second time, there is no padding
        first.trim()
        assert first.length == 4
    close(first.step(tokens[2:]), alone[2].step(tokens[2:]), 1e-5)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("given", ["ids", "mask", "segments", "embeddings"])
@torch.no_grad()
def test_forgotten_tokens_leave_no_trace(given: str, use_cache: bool) -> None:
    """Rewinding removes new tokens and tokens of the prompt. Then the text continues, also joined with another text."""
    model, prompt, tokens = decoder(), ids(2, 6), ids(2, 3, seed=1)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6]).bool() if given == "mask" else None

    def begin(length: int) -> Stepper:
        source = {"token_type_ids": ids(2, 6, seed=2)[:, :length]} if given == "segments" else {}
        embeddings = model.embedding.tokens(prompt[:, :length]) if given == "embeddings" else None
        stepper = Stepper(model, source, use_cache)
        read = prompt[:, : length if embeddings is None else 0]
        stepper.begin(read, None if mask is None else mask[:, :length], embeddings)
        return stepper

    for kept in (6, 4):
        stepper, expected = begin(6), begin(kept)
        stepper.read(ids(2, 3, seed=3), 1)
        stepper.rewind(0)
        stepper.rewind(9 - kept)
        close(stepper.step(tokens[:, 0]), expected.step(tokens[:, 0]), 1e-5)
        close(stepper.step(tokens[:, 1]), expected.step(tokens[:, 1]), 1e-5)
        if given == "embeddings":
            continue
        stepper.rewind(1)
        stepper.join([begin(3)])
        alone = torch.cat((begin(kept).read(tokens[:, [0, 2]], 1)[:, -1], begin(3).step(tokens[:, 2])))
        close(stepper.step(tokens[:, 2].repeat(2)), alone, 1e-5)
