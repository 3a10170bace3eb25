"""Greedy search and sampling: streaming, stop conditions, finish reasons, segments and frequencies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.data import Bytes
from anyformer.generation.options import Settings
from anyformer.generation.search_state import Ending
from writers import V, decoder, ids, pair


class Letters:
    """A tokenizer: token n is the n-th letter, and token 10 is a word of three letters."""

    def decode(self, tokens: list[int]) -> str:
        return "".join("abc" if token == 10 else chr(97 + token % 26) for token in tokens)


def test_the_stream_is_the_text() -> None:
    for options in (
        {},
        {"do_sample": True, "seed": 1},
        {"penalty_alpha": 0.4, "top_k": 3},
        {"prompt_lookup_num_tokens": 3},
    ):
        pieces: list[torch.Tensor] = []
        out = af.generate(
            decoder(),
            ids(2, 4),
            max_new_tokens=6,
            eos_token_id=[9, 11, 13],
            pad_token_id=0,
            stream=pieces.append,
            **options,
        )
        assert torch.equal(torch.stack(pieces, dim=1), out[:, 4:])


def test_ends_and_their_reasons() -> None:
    free = af.generate(decoder(), ids(3, 4), max_new_tokens=6, eos_token_id=[])
    eos = int(free[1, 6])
    out = af.generate(decoder(), ids(3, 4), max_new_tokens=6, eos_token_id=eos, pad_token_id=0, return_dict=True)
    lengths = []
    for row in range(3):
        new = free[row, 4:].tolist()
        n = new.index(eos) + 1 if eos in new else 6
        lengths.append(n)
        assert out.sequences[row, 4:].tolist() == (new[:n] + [0] * 6)[: out.sequences.shape[1] - 4]
        assert out.finish_reasons[row] == ("stop" if eos in new else "length")
        assert (out.log_probs[row, n:] == 0).all() and (out.log_probs[row, :n] < 0).all()
    assert min(lengths) < max(lengths) == out.sequences.shape[1] - 4


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"prompt_lookup_num_tokens": 2}])
def test_stop_strings(options: dict[str, Any]) -> None:
    tokenizer = Letters()
    options = {"max_new_tokens": 8, "eos_token_id": [], **options}
    free = af.generate(decoder(), ids(1, 4), **options)
    text = tokenizer.decode(free[0, 4:].tolist())
    stop = text[2:4]
    stopping = {"stop_strings": [stop, "???"], "tokenizer": tokenizer, "return_dict": True}
    out = af.generate(decoder(), ids(1, 4), **options, **stopping)
    found = tokenizer.decode(out.sequences[0, 4:].tolist())
    if "num_beams" not in options:
        assert found == text[: text.index(stop) + 2]
        assert out.finish_reasons == ["stop"]
    assert (stop in found) == (out.finish_reasons == ["stop"])


@pytest.mark.parametrize("stop", ["é", "🙂", "ends ☃ 🙂🙂", "日本語のテキスト" * 3, "e\u0301"])
def test_stop_strings_of_many_bytes(stop: str, tmp_path: Path) -> None:
    """With one token per byte, a text ends exactly at the last byte of the stop string, whatever text is before it."""
    tokenizer = Bytes().make([], tmp_path)
    wanted = tokenizer.encode(stop, add_special_tokens=False)
    assert len(wanted) == len(stop.encode())
    for before in ("", "x", "日", "plain words " * 9, "🙃" * 40, stop[:-1]):
        given = tokenizer.encode(before, add_special_tokens=False)
        for lost in (0, 1):  # 1: after an incomplete character
            text = [*given[lost:], *wanted]
            prompt = [5, *wanted]  # a stop string in the prompt does not end the text
            end = Ending(Settings(stop_strings=[stop]), 999, len(prompt), tokenizer, "cpu")
            done = [bool(end(torch.tensor([[*prompt, *text[:n]]]))) for n in range(1, len(text) + 1)]
            assert done == [False] * (len(text) - 1) + [True]


def test_segments_go_on() -> None:
    """New tokens get the token_type_id of the prompt's last token (as published)."""
    model, prompt = decoder(), ids(2, 4)
    kinds = torch.tensor([[5, 5, 6, 6], [5, 5, 5, 7]])
    out = af.generate(model, prompt, token_type_ids=kinds, max_new_tokens=4, eos_token_id=[])
    text = prompt
    for _ in range(4):
        last = kinds[:, -1:].expand(-1, text.shape[1] - 4)
        logits = model(input_ids=text, token_type_ids=torch.cat((kinds, last), dim=1), use_cache=False).logits
        text = torch.cat((text, logits[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(out, text)
    padded = torch.nn.functional.pad(prompt, (0, 2)), torch.nn.functional.pad(kinds, (0, 2))
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]] * 2)
    right = af.generate(
        model, padded[0], token_type_ids=padded[1], attention_mask=mask, max_new_tokens=4, eos_token_id=[]
    )
    assert torch.equal(right[:, 6:], out[:, 4:])


def test_samples_come_in_proportion() -> None:
    """In 10,000 copies of one prompt, the frequencies of the first token equal its probabilities."""
    model, prompt = decoder(), ids(1, 4)
    with torch.no_grad():
        p = (model(input_ids=prompt).logits[0, -1] / 0.8).softmax(-1)
    options = {"do_sample": True, "temperature": 0.8, "top_k": 0, "seed": 0, "num_return_sequences": 10_000}
    out = af.generate(model, prompt, max_new_tokens=1, eos_token_id=[], **options)
    share = out[:, 4].bincount(minlength=V) / 10_000
    assert (share - p).abs().max() < 0.015


def test_a_seed_each() -> None:
    prompt = ids(1, 4).expand(3, -1)
    options = {"max_new_tokens": 8, "do_sample": True, "eos_token_id": []}
    out = af.generate(decoder(), prompt, seed=[1, 2, 1], **options)
    assert torch.equal(out[0], out[2]) and not torch.equal(out[0], out[1])
    same = af.generate(decoder(), prompt, seed=1, **options)
    assert torch.equal(same[0], same[1]) and torch.equal(same[0], out[0]), "rows do not depend on their index"
    torch.manual_seed(4)
    a = af.generate(decoder(), prompt, **options)
    torch.manual_seed(4)
    assert torch.equal(a, af.generate(decoder(), prompt, **options))
    assert not torch.equal(a[0], a[1])


def test_pads_do_not_count_as_text() -> None:
    """If the padding token is the end token, penalties do not count the padding of a prompt."""
    model, prompt = decoder(), ids(1, 4)
    free = af.generate(model, prompt, max_new_tokens=8, repetition_penalty=1.5, eos_token_id=[])
    eos = int(free[0, 7])
    alone = af.generate(
        model, prompt, max_new_tokens=8, repetition_penalty=1.5, no_repeat_ngram_size=1, eos_token_id=eos
    )
    padded = torch.cat((torch.full((1, 3), eos), prompt), dim=1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    for side in (1, -1):
        given = (padded, mask) if side == 1 else (padded.roll(-3, 1), mask.flip(1))
        out = af.generate(model, given[0], attention_mask=given[1], max_new_tokens=8, repetition_penalty=1.5,
                          no_repeat_ngram_size=1, eos_token_id=eos)  # fmt: skip
        assert torch.equal(out[:, 7:], alone[:, 4:])


def test_the_decoder_prompt_of_a_pair() -> None:
    """The decoder prompt starts with the start token, which is added if the caller's prompt does not start with it."""
    start = af.generate(pair(), ids(2, 5), max_new_tokens=4, eos_token_id=[])
    again = af.generate(pair(), ids(2, 5), decoder_input_ids=start[:, :3], max_new_tokens=2, eos_token_id=[])
    added = af.generate(pair(), ids(2, 5), decoder_input_ids=start[:, 1:3], max_new_tokens=2, eos_token_id=[])
    assert torch.equal(start, again) and torch.equal(start, added)
