"""Compares beam search with plain Python over every text, and diverse beam search with its formula."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer import families
from anyformer.generation.beams import Beams
from anyformer.generation.options import Settings
from writers import V, decoder, ids, pair, sharpened


@torch.no_grad()
def log_probs(model: Any, text: list[int]) -> Tensor:
    return model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1].log_softmax(-1)


def test_as_many_beams_as_tokens_find_the_best_text() -> None:
    """V beams over two tokens drop nothing, so they find the best of all V * V texts."""
    model, prompt = decoder(), ids(1, 4)
    first = log_probs(model, prompt[0].tolist())
    totals = torch.stack([first[a] + log_probs(model, [*prompt[0].tolist(), a]) for a in range(V)])
    best = divmod(int(totals.argmax()), V)
    out = af.generate(model, prompt, num_beams=V, max_new_tokens=2, eos_token_id=[], return_dict=True)
    assert out.sequences[0, 4:].tolist() == list(best)
    torch.testing.assert_close(out.sequences_scores[0], totals.max() / 2)
    torch.testing.assert_close(out.log_probs.sum(1), out.sequences_scores * 2)


def diverse(
    model: Any, prompt: list[int], beams: int, groups: int, penalty: float, new: int
) -> list[tuple[float, list[int]]]:
    """[Vijayakumar et al. 2018] for one row without an end token: each group runs a beam search that penalises the
    tokens that earlier groups chose in the same step."""
    size = beams // groups
    held: list[list[tuple[float, list[int]]]] = [[(0.0, [])] for _ in range(groups)]
    for _ in range(new):
        taken: list[int] = []
        for g in range(groups):
            found = []
            for score, text in held[g]:
                lp = log_probs(model, [*prompt, *text])
                for token in range(V):
                    found.append((score + float(lp[token]) - penalty * taken.count(token), [*text, token]))
            held[g] = sorted(found, key=lambda pair: -pair[0])[:size]
            taken += [text[-1] for _, text in held[g]]
    return sorted(((score / new, text) for group in held for score, text in group), key=lambda pair: -pair[0])


@pytest.mark.parametrize(("beams", "groups", "penalty"), [(4, 2, 0.7), (4, 4, 3.0), (6, 3, 0.2)])
def test_diverse_beams_are_their_formula(beams: int, groups: int, penalty: float) -> None:
    model, prompt = decoder(), ids(2, 4, seed=3)
    options = {"num_beams": beams, "num_beam_groups": groups, "diversity_penalty": penalty, "max_new_tokens": 3}
    out = af.generate(model, prompt, **options, num_return_sequences=beams, eos_token_id=[], return_dict=True)
    for row in range(2):
        expected = diverse(model, prompt[row].tolist(), beams, groups, penalty, 3)
        rows = slice(row * beams, row * beams + beams)
        assert out.sequences[rows, 4:].tolist() == [text for _, text in expected]
        torch.testing.assert_close(out.sequences_scores[rows], torch.tensor([score for score, _ in expected]))
    plain = af.generate(model, prompt, num_beams=beams, num_return_sequences=beams, max_new_tokens=3, eos_token_id=[])
    assert not torch.equal(plain, out.sequences)


def test_allowed_tokens_hold_for_every_beam() -> None:
    """With a prefix tree of a list of texts, every beam writes one of these texts."""
    texts = [[11, 12, 13], [11, 14, 15], [16, 12, 17]]

    def choose(row: int, written: Tensor) -> list[int]:
        so_far = written[4:].tolist()
        mine = [text for text in texts if text[: len(so_far)] == so_far and (row == 0 or text[0] == 16)]
        return sorted({text[len(so_far)] for text in mine}) or [0]

    options = {"num_beams": 3, "prefix_allowed_tokens_fn": choose, "max_new_tokens": 3, "eos_token_id": []}
    out = af.generate(decoder(), ids(2, 4), **options)
    assert out[0, 4:].tolist() in texts and out[1, 4:].tolist() == [16, 12, 17]


@pytest.mark.parametrize("model", [decoder(), pair()], ids=["decoder", "pair"])
def test_log_probs_and_paths_give_the_scores(model: Any) -> None:
    """For every returned text, the log-probabilities along its beam path add up to its score."""
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 6, "eos_token_id": [7, 9, 13, 21]}
    out = af.generate(model, ids(3, 5), **options, length_penalty=0.5, return_dict=True)
    for row in range(12):
        real = out.beam_indices[row] >= 0
        n = int(real.sum())
        torch.testing.assert_close(out.sequences_scores[row], out.log_probs[row].sum() / n**0.5, rtol=1e-4, atol=1e-5)
        new = out.sequences[row, -out.log_probs.shape[1] :]
        for t, beam in enumerate(out.beam_indices[row][real].tolist()):
            assert beam // 4 == row // 4
            torch.testing.assert_close(out.scores[t][beam, new[t]], out.log_probs[row, t])
        assert out.finish_reasons[row] == ("stop" if int(new[n - 1]) in options["eos_token_id"] else "length")


@pytest.mark.parametrize("penalty", [-1.0, 1.0, 2.5])
@pytest.mark.parametrize("stopping", [True, False, "never"])
def test_when_a_search_is_over_as_in_transformers(both: tuple[Any, Any], stopping: bool | str, penalty: float) -> None:
    """Texts, scores and numbers of steps are equal, for texts that end early, late and never."""
    model, published = both
    options = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 9, "eos_token_id": [7, 9, 13]}
    options |= {"sequence_bias": [[[7], 4.0], [[9], 4.0], [[13], 4.0]], "pad_token_id": 0}  # texts end early
    options |= {"length_penalty": penalty, "early_stopping": stopping, "output_scores": True}
    for rows in ids(6, 4, seed=5).split([1, 5]):
        mine = af.generate(model, rows, **options, return_dict=True)
        other = published.generate(rows, **options, do_sample=False, return_dict_in_generate=True)
        assert mine.sequences.tolist() == other.sequences.tolist() and len(mine.scores) == len(other.scores)
        torch.testing.assert_close(mine.sequences_scores, other.sequences_scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("penalty", [-1.0, -0.2, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("stopping", [True, False, "never"])
def test_whether_a_search_can_get_better(stopping: bool | str, penalty: float) -> None:
    """After each step of a search with random scores, our stopping rule agrees with that in transformers."""
    rule = pytest.importorskip("transformers").GenerationMixin._check_early_stop_heuristic
    settings = Settings(num_beams=3, eos_token_id=[0, 1], length_penalty=penalty, early_stopping=stopping)
    ended = SimpleNamespace(is_stopped=lambda texts: texts[:, -1] <= 1)
    beams = Beams(SimpleNamespace(settings=settings, ended=ended, max_length=12), torch.zeros(64, 3, 4).long())
    generator, seen = torch.Generator().manual_seed(0), set()
    for length in range(5, 13):
        before = beams.can_improve
        scores = torch.randn(64, 3, 8, generator=generator) * 2 + torch.tensor([1.0, 1, 0, 0, 0, 0, 0, 0])
        beams.advance(scores.log_softmax(-1), torch.arange(64)[:, None] * 3)
        state = (beams.running_scores, beams.finished_scores, beams.is_finished)
        assert torch.equal(beams.can_improve, rule(before, *state, length, 12, 4, stopping, penalty))
        seen |= set(beams.can_improve.flatten().tolist())
    assert seen == {True, False}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A decoder, and the same model loaded in transformers."""
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": V, "n_positions": 16}
    model = sharpened(af.build(families.find("gpt2").read({**sizes, "architectures": ["GPT2LMHeadModel"]})))
    folder = tmp_path_factory.mktemp("decoder")
    af.save(model, folder, format="hf")
    return model, transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def test_the_first_group_goes_on_when_another_has_ended() -> None:
    """The first group does not depend on other groups: its texts equal a separate search."""
    options = {"max_new_tokens": 9, "eos_token_id": [7, 9, 13], "early_stopping": True, "pad_token_id": 0}
    options["sequence_bias"] = [[[7], 2.0], [[9], 2.0], [[13], 2.0]]  # texts end early
    groups = {"num_beams": 4, "num_return_sequences": 4, "num_beam_groups": 2, "diversity_penalty": 1.0}
    for row in ids(8, 4, seed=3).split(1):
        alone = af.generate(decoder(), row, num_beams=2, num_return_sequences=2, **options)
        found = af.generate(decoder(), row, **groups, **options)
        texts = [[token for token in text if token] for text in found.tolist()]
        assert all([token for token in text if token] in texts for text in alone.tolist())


def test_sampled_beams_draw_anew_in_each_step() -> None:
    """If all tokens are equally likely, each step draws different tokens."""
    flat = copy.deepcopy(decoder())
    torch.nn.init.zeros_(flat.head.out.weight)
    options = {"num_beams": 2, "max_new_tokens": 12, "eos_token_id": [], "do_sample": True, "top_k": 0, "seed": 3}
    out = af.generate(flat, ids(2, 4), **options)[:, 4:]
    assert all(len(set(row)) >= 7 for row in out.tolist())
    # random numbers depend on the position: the first step after a longer prompt draws differently
    later = af.generate(flat, ids(2, 5), **{**options, "max_new_tokens": 1})
    first = af.generate(flat, ids(2, 4), **{**options, "max_new_tokens": 1})
    assert later[:, -1].tolist() != first[:, -1].tolist()


def test_sampled_beams_differ_by_seed_and_stay_likely() -> None:
    options = {"num_beams": 3, "max_new_tokens": 5, "eos_token_id": [], "do_sample": True, "top_k": 0}
    texts = {tuple(af.generate(decoder(), ids(1, 4), **options, seed=seed)[0].tolist()) for seed in range(8)}
    assert len(texts) > 3
    assert len(list(itertools.chain(*texts))) == 9 * len(texts)
    calm = af.generate(decoder(), ids(1, 4), **{**options, "temperature": 1e-3}, seed=1)
    assert calm.shape == (1, 9)
