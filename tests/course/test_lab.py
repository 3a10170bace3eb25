"""The experiments of the course in `anyformer lab`: their forms, their texts, their verdicts."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from anyformer import cli
from anyformer.lab.experiment import DEFAULT_BUDGET, choose_form, perform
from anyformer.lab.registry import experiment, experiments
from anyformer.lab.trials import Place, Row, Values


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lab", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == list(experiments())
    for name in ("induction-heads", "norm-placement"):
        assert cli.main(["lab", "show", name]) == 0
        shown = capsys.readouterr().out
        assert experiment(name).CLAIM in shown and "tiny" in shown and "full" in shown


@pytest.mark.parametrize("name", sorted(experiments()))
def test_forms(name: str) -> None:
    """Forms are ordered by cost, trials have distinct names, and a budget selects the largest form that fits."""
    forms = experiment(name).FORMS
    assert [form for form in forms if form not in ("small", "medium")] == ["tiny", "full"]
    for kind in ("cpu", "cuda"):
        costs = [form.minutes(kind) for form in forms.values()]
        assert costs == sorted(costs)
        for form, cost in zip(forms, costs):
            assert forms[choose_form(name, forms, kind, cost)].minutes(kind) == forms[form].minutes(kind)
    assert forms[choose_form(name, forms, "cpu")].cpu <= DEFAULT_BUDGET["cpu"]
    assert forms[choose_form(name, forms, "cuda")].cuda <= DEFAULT_BUDGET["cuda"]
    check_trials(name, "tiny")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(experiments()))
def test_trials_of_larger_forms(name: str) -> None:
    for form in list(experiment(name).FORMS)[1:]:
        check_trials(name, form)


def check_trials(name: str, form: str) -> None:
    trials = experiment(name).trials(**experiment(name).FORMS[form].values)
    assert trials and len({trial.name for trial in trials}) == len(trials)


def test_circles_of_letters() -> None:
    """A letter is followed by the letter that followed it before, except at jumps; cycles differ between texts."""
    from anyformer_course.experiments.induction_heads import CIRCLE, ELSEWHERE, rounds

    texts, held = rounds(200), []
    for text in texts:
        assert len(text) == 512 and CIRCLE[0] <= len(set(text)) <= CIRCLE[1]
        after: dict[str, str] = {}
        for letter, following in pairwise(text):
            held += [after[letter] == following] if letter in after else []
            after.setdefault(letter, following)
    assert len({len(set(text)) for text in texts}) > 10 and len({text[:64] for text in texts}) == 200
    share = sum(held) / len(held)  # some jumps land on the right letter, and some are stored as successors
    assert (1 - ELSEWHERE) ** 2 - 0.02 < share < 1 - ELSEWHERE / 2


def test_induction_heads_are_compared_with_random_heads() -> None:
    """The claim needs a jump at every depth and with every seed, and a control that loses less."""
    from anyformer_course.experiments.induction_heads import claim, plot

    def learnt(height: float = -3.0, best: float = -1.0, random: float = -3.6, gained: float = 2.0) -> list[Row]:
        rows: list[Row] = []
        for depth in (1, 2, 3):
            for seed in range(2):
                last = (depth, seed) == (3, 1)
                middle = -0.1 if depth == 1 else height if last else -3.0
                end = 1.0 if depth == 1 else gained if last else 2.0
                scores = (0.0, -0.1, middle, -0.3 if depth == 1 else -4.0)
                own: list[Row] = [{"step": 2**i, "score": score, "head": 0.9} for i, score in enumerate(scores)]
                own += [{"first": first, "last": 2 * first - 2, "loss": 3.0 - fall, "slope": -fall}
                        for first, fall in ((3, 0.0), (5, end))]  # fmt: skip
                own.append({"without": "nothing", "heads": 0, "of": 8 * depth, "score": scores[-1]})
                for heads in (1, 2 * depth):
                    own += [{"without": name, "heads": heads, "of": 8 * depth, "score": score}
                            for name, score in (("induction", best), ("random", random), ("random", -4.0))]  # fmt: skip
                rows += [{"depth": depth, "seed": seed, **row} for row in own]
        return rows

    verdict = claim(learnt())
    assert verdict.holds and verdict.figures["seeds with a jump, 3 layers"] == 2
    name = "kept without a quarter of the heads, {}, 3 layers"
    assert verdict.figures[name.format("the best induction heads")] == pytest.approx(0.7 / 3.7)
    assert verdict.figures[name.format("random others")] == pytest.approx((3.3 / 3.7 + 1) / 2)
    assert not claim(learnt(best=-2.4)).holds  # too much is kept
    assert not claim(learnt(best=-1.9, random=0.5)).holds  # the control loses as much
    assert not claim(learnt(gained=1.9)).holds  # too small a fall along a text
    assert [*{label for axis in plot(learnt()).axes for label in axis.get_legend_handles_labels()[1]}]


def test_made_up_language() -> None:
    """Every word has one kind and one topic; kinds follow the grammar, and a text has one topic."""
    from anyformer_course.lab.made_up_language import Language

    language, draw = Language(words=5, kinds=4, topics=3), np.random.default_rng(0)
    where = {word: (topic, kind) for topic, kinds in enumerate(language.lexicon)
             for kind, words in enumerate(kinds) for word in words}  # fmt: skip
    assert (
        len(where) == 3 * 4 * 5 == language.size - 1
        and Language(words=5, kinds=4, topics=3).lexicon == language.lexicon
    )
    followed = set()
    for _ in range(100):
        sentence = language.sentence(draw, 1)
        assert 4 <= len(sentence) <= 7 and all(where[word] == (1, kind) for word, kind in sentence)
        followed |= {(after - before) % 4 for (_, before), (_, after) in pairwise(sentence)}
    assert followed == {1, 2}
    texts = [text.replace(".", "").split() for text in language.texts(60, 3, seed=0)]
    assert {len({where[word][0] for word in text}) for text in texts} == {1}
    assert {where[text[0]][0] for text in texts} == {0, 1, 2}


def test_tongues() -> None:
    """A text is in the language of its mark; at most two letters follow a letter, and they depend on the language."""
    from anyformer_course.experiments.experts import MARKED, MARKS, tongues

    after: dict[tuple[str, str], set[str]] = {}
    written, marks = tongues(600), 0
    for text in written:
        mark = text[0]
        letters = text.replace(mark, "")
        assert mark in MARKS and len(text) == 400 and letters.islower()
        marks += len(text) - len(letters)
        for letter, following in pairwise(letters):
            after.setdefault((mark, letter), set()).add(following)
    assert {mark for mark, _ in after} == set(MARKS) and abs(marks / 600 / 400 - MARKED) < 0.01
    assert max(map(len, after.values())) == 2 and sum(map(len, after.values())) > 1.8 * len(after)
    assert len(set.union(*(found for (_, letter), found in after.items() if letter == "a"))) > 12


def test_every_seed_counts() -> None:
    """The claim does not hold if with one seed more experts are worse, or ALiBi loses too much."""
    from anyformer_course.experiments import experts, positions

    def mixtures(last: float) -> list[Row]:
        losses = {(1, 0): 2.0, (1, 1): 1.5, (4, 0): 1.7, (4, 1): last}
        return [{"experts": number, "seed": seed, "step": 1, "loss": loss, "flops": 100 + number, "busiest": 0.5}
                for (number, seed), loss in losses.items()]  # fmt: skip

    assert experts.claim(mixtures(1.4)).holds and not experts.claim(mixtures(1.6)).holds
    assert experts.claim(mixtures(1.4)).figures["loss with 4 experts"] == pytest.approx(1.55)
    assert not experts.claim([row | {"flops": 100 * row["experts"]} for row in mixtures(1.4)]).holds

    def schemes(alibi: float = 1.02, sinusoidal: float = 1.2, guessing: float = 2.0) -> list[Row]:
        found: list[Row] = []
        for trial in positions.trials(**positions.FORMS["small"].values):
            own = {name: trial.values[name] for name in ("scheme", "seed")} | {"trial": trial.name}
            last = own["seed"] == 2  # with the other seeds the claim holds
            far = {"alibi": alibi if last else 1.0, "sinusoidal": sinusoidal if last else 1.5}
            found.append(own | dict.fromkeys(positions.PROPERTIES, own["scheme"] not in positions.ADDED))
            found[-1] |= dict.fromkeys(positions.LECTURE, own["scheme"] in ("sinusoidal", "rope"))
            found += [own | {"times": 1, "loss": 1.0}, own | {"times": 4, "loss": far.get(own["scheme"], 1.2)}]
            found.append(own | {"guessing": guessing})
        return found

    assert positions.claim(schemes()).holds and positions.claim(schemes()).learned
    assert not positions.claim(schemes(guessing=1.1)).learned  # 1.0 is more than 90 % of it
    assert not positions.claim(schemes(alibi=1.04)).holds and not positions.claim(schemes(sinusoidal=1.05)).holds
    assert positions.claim(schemes()).figures["loss increase, alibi"] == pytest.approx(0.02 / 3)
    without = [row | {"linear shift": False} if "linear shift" in row else row for row in schemes()]
    assert not positions.claim(without).holds
    table, losses = positions.plot(schemes()).axes
    assert len(table.texts) == table.images[0].get_array().size and {text.get_text() for text in table.texts} == {
        "yes", "no"
    }  # fmt: skip
    drawn = {line.get_label(): line.get_xydata().tolist() for line in losses.lines}
    assert drawn["sinusoidal"] == [[1, 1.0], [4, 1.5]] and drawn["learned"] == [[1, 1.0], [4, 1.2]]
    for scheme in ("learned", "rope"):
        wrong = [row | {"loss": 1.05} if (row["scheme"], row.get("times")) == (scheme, 4) and row["seed"] == 1 else row
                 for row in schemes()]  # fmt: skip
        assert not positions.claim(wrong).holds


def test_a_training_that_diverges_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(values: Values, place: Place) -> list[Row]:
        raise FloatingPointError("the loss is nan at step 7")

    monkeypatch.setattr(experiment("few-shot"), "work", work)
    command = ["lab", "run", "few-shot", "--form", "tiny", "--jobs", "1", "--device", "cpu", "--out", str(tmp_path)]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert "diverged: width-8: the loss is nan at step 7" in shown
    assert "tiny form: not checked: a training diverged" in shown
    assert json.loads((tmp_path / "claim.json").read_text())["holds"] is None


@pytest.mark.parametrize("name", [
    name if name in ("induction-heads",) else pytest.param(name, marks=pytest.mark.slow)
    for name in sorted(experiments())
])  # fmt: skip
def test_the_tiniest_form(name: str, tmp_path: Path) -> None:
    """Every experiment writes its figures and a plot, and no verdict."""
    torch.set_num_threads(1)
    outcome = perform(name, "tiny", tmp_path, device="cpu", jobs=1)
    assert outcome.verdict == "too small to judge" and outcome.figures and outcome.done == outcome.trials
    stored = json.loads((tmp_path / "claim.json").read_text())
    assert (
        stored["form"] == "tiny"
        and stored["holds"] is outcome.holds is None
        and stored["claim"] == experiment(name).CLAIM
    )
    assert (tmp_path / "plot.png").stat().st_size > 1000
