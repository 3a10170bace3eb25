"""Compares each logits processor with its counterpart in transformers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.generation.options import Settings
from anyformer.generation.scores import steps

transformers = pytest.importorskip("transformers")
V, P, LAST = 40, 6, 14


def batch(length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, 12, (4, length), generator=generator), torch.randn(4, V, generator=generator) * 3


def test_options_are_as_published_unless_said() -> None:
    theirs = transformers.GenerationConfig._get_default_generation_params()
    ours = {field.name: field.default for field in dataclasses.fields(Settings)}
    # exceptions: 20 new tokens for every prompt; scores are returned with return_dict=True
    others = {name: value for name, value in ours.items() if name in theirs and value != theirs[name]}
    assert others == {"max_length": None, "output_scores": None}
    assert [name for name in ours if name not in theirs and ours[name]] == ["max_matching_ngram_size"]


WORDS = [[3], [5, 6], [1, 2, 3], [2]]
BIAS = {(3,): 2.0, (5, 6): -1.5, (7, 6): 4.0}
EOS = torch.tensor([2])


def own_row(row: int, ids: Tensor) -> list[int]:
    return [row, int(ids[-1])]


def processors(g: Any) -> dict[str, tuple[dict[str, Any], Any]]:
    """Name -> (our settings, their processor)."""
    read = batch(P)[0]
    return {
        "repetition": ({"repetition_penalty": 1.7}, g.RepetitionPenaltyLogitsProcessor(1.7)),
        "encoder repetition": (
            {"encoder_repetition_penalty": 1.7}, g.EncoderRepetitionPenaltyLogitsProcessor(1.7, read)),
        "no repeat": ({"no_repeat_ngram_size": 2}, g.NoRepeatNGramLogitsProcessor(2)),
        "no repeat 1": ({"no_repeat_ngram_size": 1}, g.NoRepeatNGramLogitsProcessor(1)),
        "encoder no repeat": ({"encoder_no_repeat_ngram_size": 2}, g.EncoderNoRepeatNGramLogitsProcessor(2, read)),
        "bad words": ({"bad_words_ids": WORDS}, g.NoBadWordsLogitsProcessor(WORDS, EOS)),
        "bias": ({"sequence_bias": BIAS}, g.SequenceBiasLogitsProcessor(BIAS)),
        "bias list": (
            {"sequence_bias": [[list(k), v] for k, v in BIAS.items()]}, g.SequenceBiasLogitsProcessor(BIAS)),
        "min length": ({"min_length": 9}, g.MinLengthLogitsProcessor(9, EOS)),
        "end beyond the vocabulary": (
            {"min_length": 9, "eos_token_id": [V + 3, 2]}, g.MinLengthLogitsProcessor(9, torch.tensor([V + 3, 2]))),
        "min new": ({"min_new_tokens": 4}, g.MinNewTokensLengthLogitsProcessor(P, 4, EOS)),
        "allowed": ({"prefix_allowed_tokens_fn": own_row}, g.PrefixConstrainedLogitsProcessor(own_row, 1)),
        "forced eos": ({"forced_eos_token_id": [2, 5]}, g.ForcedEOSTokenLogitsProcessor(LAST, [2, 5])),
        "forced bos": ({"forced_bos_token_id": 4}, g.ForcedBOSTokenLogitsProcessor(4)),
        "decay": (
            {"exponential_decay_length_penalty": (3, 1.4)}, g.ExponentialDecayLengthPenalty((3, 1.4), EOS, P)),
        "suppress": ({"suppress_tokens": [4, 7]}, g.SuppressTokensLogitsProcessor([4, 7])),
        "begin suppress": ({"begin_suppress_tokens": [4, 7]}, g.SuppressTokensAtBeginLogitsProcessor([4, 7], P)),
        "normalise": ({"renormalize_logits": True}, g.LogitNormalization()),
        "temperature": ({"temperature": 0.3}, g.TemperatureLogitsWarper(0.3)),
        "top k": ({"top_k": 7}, g.TopKLogitsWarper(7)),
        "top p": ({"top_p": 0.6}, g.TopPLogitsWarper(0.6)),
        "min p": ({"min_p": 0.2}, g.MinPLogitsWarper(0.2)),
        "typical": ({"typical_p": 0.5}, g.TypicalLogitsWarper(0.5)),
        "epsilon": ({"epsilon_cutoff": 0.05}, g.EpsilonLogitsWarper(0.05)),
        "eta": ({"eta_cutoff": 0.05}, g.EtaLogitsWarper(0.05)),
    }  # fmt: skip


PROCESSORS = processors(transformers.generation.logits_process)


def ours(s: Settings, ids: Tensor, scores: Tensor) -> Tensor:
    for step in steps(s, P, LAST, batch(P)[0], scores.device):
        scores = step(ids, scores)
    return scores


@pytest.mark.parametrize("name", PROCESSORS)
def test_equals_transformers(name: str) -> None:
    options, processor = PROCESSORS[name]
    sampled = {"temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"} & options.keys()
    s = Settings(**{"eos_token_id": 2, "do_sample": bool(sampled), "top_k": 0, **options})
    s.check(V)
    changed = False
    for length in range(1, LAST):
        ids, scores = batch(length)
        theirs = processor(ids, scores.clone())
        torch.testing.assert_close(ours(s, ids, scores), theirs, rtol=1e-5, atol=1e-5)
        changed |= not torch.equal(theirs, scores)
    assert changed, "the test must show something"


@pytest.mark.parametrize(("silent", "latest"), [(6, 9), (6, None), (9, 0), (2, 30)])
def test_times_as_published(silent: int, latest: int | None) -> None:
    """Tokens above `silent`, up to 11, are timestamps; all orders of text and timestamps occur."""
    options = {"no_timestamps_token_id": silent} | ({} if latest is None else {"max_initial_timestamp_index": latest})
    config = transformers.GenerationConfig(eos_token_id=2, **options)
    theirs = transformers.generation.logits_process.WhisperTimeStampLogitsProcessor(config, begin_index=P)
    for length in range(P, LAST + 20):
        ids, scores = batch(length)
        mine = ours(Settings(eos_token_id=2, return_timestamps=True, **options), ids, scores)
        assert torch.equal(mine, theirs(ids, scores))


@pytest.mark.parametrize("share", [0.125, 0.25, 0.5, 0.625, 0.75, 0.875])
def test_shares_at_their_boundary(share: float) -> None:
    """If probabilities sum exactly to the share, the same tokens are kept as in transformers."""
    p = torch.tensor([[0.25, 0.125, 0.5, 0.125], [0.25] * 4, [0.5, 0.25, 0.125, 0.125], [0.125, 0.125, 0.25, 0.5]])
    g, eos = transformers.generation.logits_process, {"eos_token_id": 2, "do_sample": True, "top_k": 0}
    for name, processor in (
        ("top_p", g.TopPLogitsWarper(share)), ("typical_p", g.TypicalLogitsWarper(share)),
        ("min_p", g.MinPLogitsWarper(share)), ("epsilon_cutoff", g.EpsilonLogitsWarper(share)),
    ):  # fmt: skip
        mine = ours(Settings(**eos, **{name: share}), torch.zeros(4, P, dtype=torch.long), p.log())
        assert mine.tolist() == processor(None, p.log()).tolist(), name


@pytest.mark.parametrize("options", [{"min_length": 9}, {"min_new_tokens": 3}, {"min_length": 4, "min_new_tokens": 3}])
def test_the_least_length_is_the_first_that_may_end(options: dict[str, int]) -> None:
    s = Settings(eos_token_id=2, **options)
    for length in range(1, LAST):
        ids, scores = batch(length)
        out = ours(s, ids, scores)
        assert bool(out[:, 2].isneginf().all()) == (length < 9)
        assert torch.equal(out.index_fill(1, EOS, 0), scores.index_fill(1, EOS, 0))


def test_padding_does_not_count_as_length() -> None:
    """Texts of 8 and 9 tokens, the first with padding before it (the id V)."""
    ids, scores = batch(9)
    ids[0, 0] = V
    ended = ours(Settings(eos_token_id=2, min_length=9), ids, scores)[:, 2].isneginf()
    assert ended[0] and not ended[1:].any()


@pytest.mark.parametrize(("prompt", "bos", "first"), [(1, None, 1), (1, 4, 2), (2, 4, 2), (2, None, 2), (3, 4, 3)])
def test_the_first_token_that_may_not_be_is_after_the_forced_one(prompt: int, bos: int | None, first: int) -> None:
    """After a prompt of only the start token, the first token is forced, and suppression at the start applies to the
    second."""
    s = Settings(begin_suppress_tokens=[5], forced_bos_token_id=bos)
    for length in range(prompt, 6):
        ids, scores = batch(length)
        for step in steps(s, prompt, LAST, None, scores.device)[-1:]:
            assert bool(step(ids, scores)[:, 5].isneginf().all()) == (length == first)


def test_presence_and_frequency() -> None:
    """OpenAI's penalties count new tokens, not the prompt."""
    ids, scores = batch(P + 5)
    out = ours(Settings(presence_penalty=0.5, frequency_penalty=0.25), ids, scores)
    for row in range(4):
        for token in range(V):
            times = int((ids[row, P:] == token).sum())
            expected = scores[row, token] - 0.5 * (times > 0) - 0.25 * times
            torch.testing.assert_close(out[row, token], expected)


def test_pads_are_not_text() -> None:
    """No processor counts the id after the vocabulary, which stands for padding."""
    s = Settings(repetition_penalty=1.7, no_repeat_ngram_size=2, eos_token_id=2)
    ids, scores = batch(P + 3)
    padded = torch.cat((torch.full((4, 3), V), ids), dim=1)
    torch.testing.assert_close(ours(s, padded, scores), ours(s, ids, scores))


def test_all_allowed_tokens_forbidden() -> None:
    s = Settings(prefix_allowed_tokens_fn=lambda row, ids: [])
    with pytest.raises(ValueError, match="prefix_allowed_tokens_fn .*no token.* row 0"):
        ours(s, *batch(P))
