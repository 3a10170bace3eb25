"""Measurements, claims and plots of experiments, from made-up rows."""

from __future__ import annotations

import contextlib
import itertools
import math
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from anyformer.data import PythonDocs, Words
from anyformer.lab.trials import Place
from anyformer.models.construct import build
from anyformer.objectives.tag import Tag
from anyformer.specs.codec import kinds
from anyformer.specs.part import Part
from anyformer.train.start import setup
from anyformer_course.experiments import (
    efficient_attention,
    emergence,
    experts,
    few_shot,
    generation_time,
    in_context_regression,
    induction_heads,
    modifications,
    norm_placement,
    positions,
    speed_and_quality,
    state_spaces,
    transformer_and_recurrence,
)
from anyformer_course.lab import recall
from anyformer_course.lab.made_up_language import Language
from anyformer_course.lab.narang_table import ROWS, row_named
from anyformer_course.lab.runs import held_out, texts

Curves = dict[str, list[tuple[float, float]]]


def curves(figure: Any) -> dict[str, Curves]:
    """Return title -> label -> points of a curve."""
    return {axis.get_title(): {line.get_label(): [*zip(*line.get_data(), strict=True)] for line in axis.lines}
            for axis in figure.axes}  # fmt: skip


# -- measurements -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "length", "starts"), [(3, 10, [0, 45, 90]), (1, 10, [0]), (2, 300, [0, 0])])
def test_rows_that_were_held_out_lie_evenly_over_the_texts(rows: int, length: int, starts: list[int]) -> None:
    tokens = np.arange(100, dtype=np.uint16)
    column = SimpleNamespace(ends=np.array([30, 100]), read=lambda begin, end: tokens[begin:end])
    split = SimpleNamespace(valid=SimpleNamespace(fields={"input_ids": column}))
    ids = held_out(SimpleNamespace(splits=split, device="cpu"), rows, length)
    size = min(length, 100)
    assert ids.dtype == torch.int64 and ids.tolist() == [[*range(start, start + size)] for start in starts]


def test_texts_of_trials_share_a_folder_that_is_made(tmp_path: Path) -> None:
    place = Place(tmp_path / "a/trial", tmp_path / "far/away/shared", "cpu")
    made: list[str] = []
    for _ in range(2):
        source = place.texts("lines", lambda: made.append("once") or ["one", "two"])
        assert Path(source.path).read_text() == "one\ntwo\n"
    assert made == ["once"]


def test_a_row_of_few_shot_holds_four_texts() -> None:
    """One token per letter and space, and one end token per text."""
    assert {4 * (len(text) + 1) for text in few_shot.pair_texts(9, 4, 0)} == {few_shot.LENGTH}


# unique, relative, consistent in a longer text, bounded, extends to positions beyond the training length
PROPERTIES = {
    "none": (False, True, True, True, True), "learned": (True, False, False, False, False),
    "alibi": (True, True, True, False, True), "rope": (True, True, True, True, True),
}  # fmt: skip


@pytest.mark.parametrize("scheme", PROPERTIES)
def test_properties_of_positions(scheme: str) -> None:
    found = positions.properties(positions.model_spec(scheme, 32, 1, 16), 16)
    assert tuple(found[name] for name in positions.PROPERTIES) == PROPERTIES[scheme]


@pytest.mark.parametrize(("scheme", "answers"), [
    ("sinusoidal", (True, True, True, True, True)), ("rope", (True, True, True, True, True)),
    ("learned", (True, False, False, False, True)), ("integer", (True, False, False, True, False)),
    ("binary", (True, False, True, True, False)), ("concatenated", (True, True, True, False, False)),
    ("alibi", (None, None, True, True, False)),
])  # fmt: skip
def test_properties_that_the_lectures_ask_for(scheme: str, answers: tuple[bool | None, ...]) -> None:
    found = positions.lecture_properties(scheme)
    assert tuple(found[name] for name in positions.LECTURE) == answers


def test_grids_have_forms_of_these_schemes() -> None:
    kinds()
    assert set(positions.GRID) <= set(positions.SCHEMES) and set(positions.GRID.values()) <= set(Part.kinds)


def test_far_places_share_a_bucket() -> None:
    found = positions.properties(positions.model_spec("bucketed", 32, 1, 32), 32)
    assert found["relative"] and not found["unique"]


def test_as_many_other_heads_are_removed() -> None:
    """Random heads are none of the best; removed heads are silent, and no other head changes."""
    ranked = [(f"decoder.layers.{i}.attention.op", head) for i in range(2) for head in range(8)]
    random = np.random.default_rng(0)
    drawn = [induction_heads.draw_others(ranked, 4, random) for _ in range(50)]
    assert all(len({*each}) == 4 and not {*each} & {*ranked[:4]} for each in drawn)
    assert {head for each in drawn for head in each} == {*ranked[4:]}
    assert [induction_heads.removed_numbers(each) for each in (8, 24)] == [[1, 2, 4], [1, 2, 4, 6, 8]]
    model, ids = build(induction_heads.model_spec(2, 16), seed=0), torch.arange(9)[None]
    with torch.no_grad():
        last = model.decoder.layers[1].attention.op.o
        last.weight[:, :2] = 0  # the first head of the second layer has no effect
        whole = model(input_ids=ids).logits
        assert torch.equal(induction_heads.remove(model, [ranked[8]], ids), whole)
        assert not torch.allclose(induction_heads.remove(model, [ranked[9]], ids), whole, atol=1e-4)
        assert not torch.allclose(induction_heads.remove(model, [ranked[0]], ids), whole, atol=1e-4)


def test_shots_are_counted_from_none() -> None:
    """The model predicts only the second letter of every pair but the first."""

    def model(input_ids: Any) -> Any:
        following = torch.nn.functional.one_hot(input_ids.roll(-1, 1), 300).float() * 9
        following[:, 0], following[:, 1::3], following[:, 2::3] = 0, 0, 0
        return SimpleNamespace(logits=following)

    trainer = SimpleNamespace(
        tokenizer=SimpleNamespace(encode=lambda text: [*text.encode()]), device="cpu", model=model,
        eval_mode=contextlib.nullcontext,
    )  # fmt: skip
    place: Any = SimpleNamespace(texts=lambda *given: PythonDocs(), train=lambda run: trainer, device="cpu")
    rows = few_shot.work(few_shot.trials(**few_shot.FORMS["tiny"].values)[0].values, place)
    assert [row["shots"] for row in rows] == [*range(few_shot.SHOTS)]
    assert [row["accuracy"] for row in rows] == [0.0, *[1.0] * (few_shot.SHOTS - 1)]
    assert rows[0]["loss"] == pytest.approx(math.log(300), abs=1e-4)
    assert [row["loss"] for row in rows[1:]] == pytest.approx([math.log(1 + 299 * math.exp(-9))] * 11, abs=1e-4)


def test_places_are_told_apart_where_one_head_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_a_flat_head(spec: Any, seed: int) -> Any:
        model = build(spec, seed=seed)
        table = next(p for name, p in model.named_parameters() if ".position." in name)
        with torch.no_grad():
            table[:, 0] = 0
        return model

    monkeypatch.setattr(positions, "build", with_a_flat_head)
    assert positions.properties(positions.model_spec("bucketed", 32, 1, 8), 8)["unique"]


@pytest.mark.parametrize(("steps", "warmup"), [(3, 1), (1500, 75)])
def test_a_twentieth_of_the_steps_warms_up(steps: int, warmup: int, tmp_path: Path) -> None:
    class Asked(Exception):
        pass

    class Untrained(Place):
        def train(self, run: Any, *callbacks: Any, name: str = "run") -> Any:
            assert (run.steps, run.schedule.warmup, run.evaluate.every, run.keep.every) == (steps, warmup, steps, steps)
            assert run.precision == "fp32" and not run.compile
            raise Asked

    values = in_context_regression.trials(**in_context_regression.FORMS["tiny"].values | {"steps": steps})[0].values
    with pytest.raises(Asked):
        in_context_regression.work(values, Untrained(tmp_path, tmp_path, "cpu"))


def test_answers_stand_where_they_are_asked_for() -> None:
    for text in recall.palindromes(9, 5, 4, seed=0):
        word, answer = text.split(recall.ASK)
        assert answer == word[::-1] and len(word) == 5 and set(word) <= set("abcd")
    for selective in (True, False):
        starts = set()
        for text in recall.copies(50, 3, 4, 6, 0, selective):
            words, tags = text["words"].split(), text["tags"].split()
            assert words[9:] == [recall.ASK] * 3 and {*tags[:9]} == {"-100"}
            assert [word for word in words[:9] if word != recall.BLANK] == tags[9:]
            starts.add(words[:3] == tags[9:])
        assert (False in starts) is selective


def test_texts_by_name_or_path(tmp_path: Path) -> None:
    """One text in twenty is held out, from every source."""

    def rows(data: Any) -> list[list[str]]:
        return [[row.example["text"] for row in source.rows(("text",))] for source in (data.train, data.valid)]

    place = Place(tmp_path / "trial", tmp_path / "shared", "cpu")
    language = Language(words=5, kinds=4, topics=3)
    train, valid = rows(texts(place, "made-up", language=language, number=60))
    assert sorted([*train, *valid]) == sorted(language.texts(60, 24, 0)) and len(valid) == 3
    (tmp_path / "own.txt").write_text("\n\n".join(f"Text {i}." for i in range(40)))
    train, valid = rows(texts(place, "docs", str(tmp_path / "own.txt")))
    assert sorted([*train, *valid]) == sorted(f"Text {i}." for i in range(40)) and len(valid) == 2
    assert texts(place, "library").train.source == PythonDocs(library=True) != texts(place, "docs").train.source


@pytest.mark.parametrize("seed", range(3))
def test_most_texts_of_a_row_are_whole(seed: int, tmp_path: Path) -> None:
    """Rows begin at different tokens with different seeds; still, most texts in a row are complete."""
    texts, rows = recall.palindromes(40, 5, 4, seed=0), list[str]()

    class Untrained(Place):
        def train(self, run: Any, *callbacks: Any, name: str = "run") -> Any:
            trainer = setup(run, tmp_path / "run", device="cpu", records=tmp_path / "records")
            with trainer.feed(0) as steps:
                rows.extend(trainer.tokenizer.decode(ids) for ids in next(iter(steps)).batches[0]["input_ids"].tolist())

    place = Untrained(tmp_path / "trial", tmp_path / "shared", "cpu")
    spec = transformer_and_recurrence.model_spec("transformer", 16, recall.row_length(11))
    recall.train_on(place, "texts", lambda: texts, 11, spec, {"steps": 2, "batch": 8, "seed": seed}, lr=1e-3)
    assert len(rows) == 2
    assert all(sum(text in texts for text in row.split("<|endoftext|>")) >= recall.TEXTS - 1 for row in rows)


def test_answers_that_are_right_are_counted() -> None:
    """For a model that always predicts "b", and for one that repeats the token it reads."""

    def constant(input_ids: Any) -> Any:
        return SimpleNamespace(logits=torch.eye(256)[ord("b")].expand(*input_ids.shape, 256))

    def echo(input_ids: Any) -> Any:
        return SimpleNamespace(logits=torch.eye(256)[input_ids])

    def accuracy(model: Any, *texts: str) -> list[float]:
        trainer: Any = SimpleNamespace(
            tokenizer=SimpleNamespace(encode=lambda text: [*text.encode()]), device="cpu", model=model,
            eval_mode=contextlib.nullcontext,
        )  # fmt: skip
        return recall.answer_accuracy(trainer, [*texts])

    assert accuracy(constant, "abc|cba", "bba|abb") == [0.0, 1.0, 0.5]
    assert accuracy(echo, "abc|cba", "aab|baa") == [0.0, 0.0, 0.5]  # right if a letter repeats


def test_letters_that_are_copied_are_counted(tmp_path: Path) -> None:
    """The model always predicts "b"; blanks do not count."""
    scores = torch.eye(len(state_spaces.TAGS))[state_spaces.TAGS.index("b")]
    trainer: Any = SimpleNamespace(
        tokenizer=Words().make(["a b c . |"], tmp_path), objective=Tag(labels=state_spaces.TAGS), to_device=dict,
        model=lambda input_ids: SimpleNamespace(logits=scores.expand(*input_ids.shape, -1)),
        eval_mode=contextlib.nullcontext,
    )  # fmt: skip
    texts = [{"words": "a . b | |", "tags": "-100 -100 -100 a b"}, {"words": "a c . | |", "tags": "-100 -100 -100 a c"}]
    assert state_spaces.share_copied(trainer, texts) == 0.25


def test_a_text_read_in_pieces_is_the_text() -> None:
    """The logits of the last piece equal those of a pass over the whole text, and the state has one size."""
    spec = state_spaces.model_spec("mamba", 8, states=4, depth=1)
    model, ids = build(spec, seed=0).eval(), torch.arange(64)[None]
    state = model.new_state(1, capacity=64)
    with torch.no_grad():
        for piece in ids.split(16, 1):
            logits = model(input_ids=piece, past_key_values=state).logits
        assert torch.allclose(logits, model(input_ids=ids).logits[:, -16:], atol=1e-5)
    rows = state_spaces.read_in_pieces(4 * state_spaces.PIECE, "cpu")
    assert [row["read"] // state_spaces.PIECE for row in rows] == [1, 2, 4]
    assert len({row["state"] for row in rows}) == len({row["bytes"] for row in rows}) == 1


# -- claims -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answers", "losses", "holds"), [
    ((0.0, 0.05, 0.7), (3.0, 2.0, 1.0), True), ((0.2, 0.25, 0.9), (3.0, 2.0, 1.0), False),  # able at the smallest size
    ((0.0, 0.7, 0.5), (3.0, 2.0, 1.0), False),  # not able at the largest size
    ((0.0, 0.35, 0.7), (3.0, 2.9, 1.0), False),  # the loss falls as suddenly
])  # fmt: skip
def test_emergence_is_a_step_where_the_loss_has_none(
    answers: tuple[float, ...], losses: tuple[float, ...], holds: bool
) -> None:
    rows = [
        {"width": 4 * 2**i, "parameters": 10**i, "seed": seed, "answers": a + sign * 0.01, "loss": loss, "digit": a}
        for i, (a, loss) in enumerate(zip(answers, losses, strict=True)) for seed, sign in ((0, 1), (1, -1))
    ]  # fmt: skip
    verdict = emergence.claim(rows)
    assert verdict.holds is holds
    assert verdict.figures["exact answers, width 8"] == pytest.approx(answers[1])
    steps = [(b - a) / (answers[-1] - answers[0]) for a, b in pairwise(answers)]
    assert verdict.figures["largest step in exact answers"] == pytest.approx(max(steps))
    right, nats = curves(emergence.plot(rows)).values()
    assert right["digits"] == [(10**i, each) for i, each in enumerate(answers)]
    assert [each for _, each in right["exact answers"]] == pytest.approx([*answers])
    assert next(iter(nats.values())) == [(10**i, each) for i, each in enumerate(losses)]


@pytest.mark.parametrize(("sudden", "holds"), [(8, True), (6, True), (5, False)])
def test_emergence_is_seen_with_most_seeds(sudden: int, holds: bool) -> None:
    """Exact answers have the larger step in the mean, but not with every seed."""
    rows = [{"width": 4 * 2**i, "parameters": 10**i, "seed": seed, "digit": 0.5, "loss": 3.0 - i,
             "answers": (0.0, 0.0 if seed < sudden else 0.45, 0.9)[i]}
            for i in range(3) for seed in range(8)]  # fmt: skip
    rows = [row | {"loss": 1.9} if row["seed"] >= sudden and row["width"] == 8 else row for row in rows]
    verdict = emergence.claim(rows)
    assert verdict.holds is holds
    assert verdict.figures["seeds in which exact answers have the larger step"] == sudden


def test_experts_may_cost_a_twentieth_more() -> None:
    def rows(dearer: float) -> list[dict[str, Any]]:
        return [{"experts": number, "seed": 0, "step": 1, "loss": 2.0 / number, "flops": flops, "busiest": 0.5,
                 "parameters": 10 * number} for number, flops in ((1, 100.0), (4, 100.0 * (1 + dearer)))]  # fmt: skip

    for dearer, holds in ((0.04, True), (0.06, False), (0.9, False)):
        verdict = experts.claim(rows(dearer))
        assert verdict.holds is holds and verdict.figures["extra cost of a token"] == pytest.approx(dearer)
    later = [{**row, "step": 2, "loss": 0.1} for row in rows(0.04)]
    by_step, at_end = curves(experts.plot([*rows(0.04), *later])).values()
    assert by_step == {"1: 10": [(1, 2.0), (2, 0.1)], "4: 40": [(1, 0.5), (2, 0.1)]}
    assert [*at_end.values()] == [[(1, 0.1), (4, 0.1)]] * 2  # the mean, and a point for each seed


def costs_by_length(**powers: float) -> list[dict[str, Any]]:
    """Return rows for which the claim holds, except for the given powers of the length."""
    rows = []
    for name, tokens in itertools.product(efficient_attention.MODELS, (1024, 2048, 4096, 8192)):
        own = {
            "flops": 2.0 if name == "full" else 1.0,
            "bytes": 1.0,
            "bytes with scores": 2.0,
            "step": 0.0,
            "state": 0.0,
        }
        own |= {"step": 1.0} if name == "full" else {}
        own |= {field: power for field, power in powers.items() if name == "mamba"}
        rows.append({"model": name, "tokens": tokens, **{field: 8.0 * tokens**power for field, power in own.items()}})
    return rows


@pytest.mark.parametrize(("wrong", "holds"), [
    ({}, True), ({"flops": 1.2}, False), ({"bytes": 1.2}, False), ({"step": 0.1}, False), ({"state": 0.1}, False),
])  # fmt: skip
def test_efficient_attention_is_linear_in_all_it_costs(wrong: dict[str, float], holds: bool) -> None:
    verdict = efficient_attention.claim(costs_by_length(**wrong))
    assert verdict.holds is holds
    assert verdict.figures["exponent of operations, full"] == pytest.approx(2)
    assert verdict.figures["exponent of operations, mamba"] == pytest.approx(wrong.get("flops", 1))


def test_a_cache_that_saves_nothing_is_told(tmp_path: Path) -> None:
    """The claim holds for real counts, but not if the decoder with a cache costs as much as without."""
    values = {"depth": 1, "width": 16, "lengths": [4, 8, 16], "timed": 0}
    place = Place(tmp_path, tmp_path, "cpu")
    rows = [{**trial.values, **row} for trial in generation_time.trials(**values)
            for row in generation_time.work(trial.values, place)]  # fmt: skip
    assert generation_time.claim(rows).holds
    again = {row["tokens"]: row["flops"] for row in rows if row["model"] == "no cache"}
    broken = [row | {"flops": again[row["tokens"]]} if row["model"] == "cache" else row for row in rows]
    assert not generation_time.claim(broken).holds
    operations, state = curves(generation_time.plot(rows)).values()
    assert operations["no cache"] == [*again.items()] and operations.keys() == {*generation_time.KINDS}
    assert state.keys() == operations.keys() - {"no cache"}  # which has no state


def recurrence_rows(
    depths: tuple[int, int] = (9, 9), far: float = 1.0, lstm: float = 0.2, near: float = 1.0
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for kind in transformer_and_recurrence.KINDS:
        both = depths if kind == "transformer" else (100, 200)
        rows += [{"kind": kind, "tokens": 64 * (i + 1), "depth": depth, "flops": 9.0 * (i + 1), "seconds": i + 1.0}
                 for i, depth in enumerate(both)]  # fmt: skip
        last = far if kind == "transformer" else lstm
        first = near if kind == "gru" else 1.0
        rows += [{"kind": kind, "seed": seed, "distance": 2 * i, "accuracy": {1: first, 4: last}.get(i, 1.0)}
                 for seed in range(3) for i in range(1, 5)]  # fmt: skip
        rows += [{"kind": kind, "seed": seed, "solved at": 50 if seed else None} for seed in range(3)]
    return rows


@pytest.mark.parametrize(("wrong", "holds"), [
    ({}, True), ({"depths": (9, 10)}, False), ({"far": 0.9}, False), ({"lstm": 0.7}, False), ({"near": 0.8}, False),
])  # fmt: skip
def test_a_transformer_reads_at_once_and_recalls(wrong: dict[str, Any], holds: bool) -> None:
    verdict = transformer_and_recurrence.claim(recurrence_rows(**wrong))
    assert (verdict.holds and verdict.learned) is holds and verdict.learned is (wrong.get("near", 1.0) >= 0.9)
    assert verdict.figures["exponent of depth, lstm"] == pytest.approx(1)
    assert verdict.figures["smallest gap with a seed"] == pytest.approx(wrong.get("far", 1.0) - wrong.get("lstm", 0.2))
    assert verdict.figures["shortest distances solved at step, gru"] == "never, 50, 50"
    reach = verdict.figures["farthest distance recalled at least half of the time, lstm"]
    assert reach == (8 if wrong.get("lstm", 0.2) >= 0.5 else 6)
    depth, seconds, right = curves(transformer_and_recurrence.plot(recurrence_rows(**wrong))).values()
    assert depth["lstm"] == [(64, 100), (128, 200)] and seconds["lstm"] == [(64, 1.0), (128, 2.0)]
    assert right["lstm"] == [(2, 1.0), (4, 1.0), (6, 1.0), (8, wrong.get("lstm", 0.2))]
    assert len(right) == 3 * len(transformer_and_recurrence.KINDS)  # a line for each seed


@pytest.mark.parametrize(("wrong", "holds"), [
    ({}, True), ({"selective-mamba": 0.9}, False), ({"selective-s4": 0.7}, False), ({"plain-s4": 0.9}, False),
    ({"state": 1.0}, False), ({"bytes": 1.0}, False), ({"flops": 1.1}, False),
])  # fmt: skip
def test_mamba_chooses_what_it_keeps(wrong: dict[str, float], holds: bool) -> None:
    right = {"selective-s4": 0.3, "selective-mamba": 1.0, "plain-s4": 1.0}
    rows: list[dict[str, Any]] = []
    for name, share in right.items():
        task, kind = name.split("-")
        last = wrong.get(name, share)  # one seed of three
        rows += [
            {"task": task, "kind": kind, "seed": seed, "accuracy": last if seed == 2 else share} for seed in range(3)
        ]
    powers = {"state": 0.0, "bytes": 0.0, "flops": 1.0, "seconds": 1.3} | wrong
    rows += [{"read": read, **{field: read ** powers[field] for field in ("state", "bytes", "flops", "seconds")}}
             for read in (2**10, 2**15, 2**20)]  # fmt: skip
    assert state_spaces.claim(rows).holds is holds
    copied, memory, seconds = curves(state_spaces.plot(rows)).values()
    assert copied["s4"] and {value for points in copied.values() for _, value in points} >= {0.3, 1.0}
    assert memory["state"] == [(row["read"], row["state"]) for row in rows if "read" in row]
    assert [*seconds.values()] == [[(row["read"], row["seconds"]) for row in rows if "read" in row]]


def mixer_rows(**changes: dict[str, float]) -> list[dict[str, Any]]:
    """Full attention recalls everything, half of the other mixers recall half; on text all are equal."""
    rows = []
    for seed, (i, name) in itertools.product(range(3), enumerate(speed_and_quality.MIXERS)):
        own = {"recall": 0.5 if i % 2 else 1.0, "loss": 1.0, "cost": 9.0, "long cost": 10.0 - bool(i), "long": 99}
        rows.append(
            {"mixer": name, "seed": seed, **own, **(changes.get(name.replace("-", "_"), {}) if seed == 2 else {})}
        )
    return rows


@pytest.mark.parametrize(("wrong", "holds"), [
    ({}, True), ({"full": {"recall": 0.96}}, False),  # with one seed a cheaper mixer recalls more
    ({name.replace("-", "_"): {"recall": 0.94 if name == "full" else 0.5} for name in speed_and_quality.MIXERS},
     False),  # with one seed full attention is ahead but not trained
    ({name: {"recall": 2.0} for name in ("window",)}, False),
    ({name.replace("-", "_"): {"loss": 2.0} for name in speed_and_quality.MIXERS[1:9]}, False),
])  # fmt: skip
def test_recall_is_what_cheaper_mixers_lose(wrong: dict[str, Any], holds: bool) -> None:
    assert speed_and_quality.claim(mixer_rows(**wrong)).holds is holds
    for axis in speed_and_quality.plot(mixer_rows(**wrong)).axes:
        points = [tuple(line.get_xydata()[0]) for line in axis.lines[:-1]]  # the last line is the frontier
        assert [text.get_text() for text in axis.texts] == [*speed_and_quality.MIXERS]
        assert [tuple(text.xy) for text in axis.texts] == points
        assert {*map(tuple, axis.lines[-1].get_xydata())} <= {*points}


def test_the_frontier() -> None:
    """An expensive mixer is on the frontier if it is better than all cheaper mixers."""
    costs, quality = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 1.0}, {"a": 0.5, "b": 0.4, "c": 0.9, "d": 0.1}
    assert speed_and_quality.frontier(costs, quality) == ["a", "c"]


@pytest.mark.parametrize("name", ["full", "window", "compressed", "convolution", "rwkv", "s4"])
def test_efficient_mixers_cost_less_on_long_texts(name: str) -> None:
    """In a text eight times as long a token costs the same, unless every token attends to all tokens before it."""
    short, long = (speed_and_quality.token_cost(name, 32, length, 8) for length in (256, 2048))
    grows = name in ("full", "compressed")
    assert (long > 1.5 * short) if grows else long == pytest.approx(short, rel=0.15)


# -- plots ------------------------------------------------------------------------------------------------------------


def test_costs_are_drawn_by_model() -> None:
    rows = [{"model": name, "tokens": 64 * 2**i, "flops": n + i + 1.0, "bytes": 8 * n + i + 1, "step": None}
            for n, name in enumerate(efficient_attention.MODELS) for i in range(2)]  # fmt: skip
    found = curves(efficient_attention.plot(rows))
    for n, name in enumerate(efficient_attention.MODELS):
        assert found["operations of a pass"][name] == [(64, n + 1), (128, n + 2)]
        assert found["peak memory of a pass, bytes"][name] == [(64, 8 * n + 1), (128, 8 * n + 2)]
    assert found["operations of a step"] == {}


def test_errors_are_drawn_beside_those_of_bayes() -> None:
    """One plot per noise, and the ratios of all noises in the last plot."""
    rows = [{"noise": noise, "pairs": pairs, "model": 3.0 / (pairs + 1), "bayes": 2.0 / (pairs + 1), "neighbours": 4.0,
             "least squares": 5.0} for noise in (0.5, 1.0) for pairs in range(3)]  # fmt: skip
    found = curves(in_context_regression.plot(rows))
    assert [*found] == ["mean squared error, noise 0.5", "mean squared error, noise 1",
                        "error of the model / of Bayes"]  # fmt: skip
    assert found["mean squared error, noise 1"]["model"] == [(0, 3.0), (1, 1.5), (2, 1.0)]
    last = found["error of the model / of Bayes"]
    assert last["noise 0.5"] == last["noise 1"] == [(1, 1.5), (2, 1.5)]


def test_ranks_are_drawn_from_the_first_on() -> None:
    names = [row.name for row in ROWS[:4]]
    rows = [{"row": name, "final": float(i), "steps per second": 2.0} for i, name in enumerate(names)]
    final = modifications.plot([*rows, {**rows[0], "seed": 1}]).axes[2]
    assert final.collections[0].get_offsets()[:, 1].tolist() == [1, 2, 3, 4]
    assert [text.get_text() for text in final.texts] == names[:1]  # no row is better
    assert final.texts[0].xy == tuple(final.collections[0].get_offsets()[0])
    papers = [row_named(name).final_loss for name in names]
    ranks = [1 + sum(other < loss for other in papers) + (papers.count(loss) - 1) / 2 for loss in papers]
    assert final.collections[0].get_offsets()[:, 0].tolist() == ranks


def test_gradients_are_drawn_by_layer_and_losses_by_rate() -> None:
    rows: list[dict[str, Any]] = []
    for n, placement in enumerate(norm_placement.PLACEMENTS):
        own = {"placement": placement, "lr": None, "warm": None}
        rows += [own | {"layer": i, "gradient": math.exp(n + i)} for i in range(2)]
        rows += [own | {"lr": lr, "warm": warm, "valid": n + 100 * lr + warm}
                 for lr in (0.1, 0.2) for warm in (True, False)]  # fmt: skip
    figure = norm_placement.plot(rows)
    found = curves(figure)
    for n, placement in enumerate(norm_placement.PLACEMENTS):
        assert found["gradient before the first step"][placement] == [(0, math.exp(n)), (1, math.exp(n + 1))]
        assert found["last loss with warm-up"][placement] == [(0.1, n + 11), (0.2, n + 21)]
        assert found["last loss without warm-up"][placement] == [(0.1, n + 10), (0.2, n + 20)]
    assert [(axis.get_xscale(), axis.get_yscale()) for axis in figure.axes] == [
        ("linear", "log"), ("log", "linear"), ("log", "linear"),
    ]  # fmt: skip
