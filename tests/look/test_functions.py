"""`af.look`: results of its functions on small models whose behavior is known."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.look.roles import steps
from anyformer.look.trace import addresses
from anyformer.stacks.block import Block
from anyformer.stacks.step_kinds import NormedShortcut
from planted import HEADS, WORDS, planted
from small import close
from tiny import inputs_of, model_of

REPO = Path(__file__).resolve().parents[2]
LAYER = "decoder.layers.{}.attention"


def run_of(family: str, rows: slice = slice(0, 1), **options: Any) -> Any:
    inputs = {name: value[rows] for name, value in inputs_of(family).items()}
    with torch.no_grad():
        return af.trace(model_of(family), **options, **inputs)


# -- planted heads ----------------------------------------------------------------------------------------------------


def test_head_scores_find_the_planted_heads() -> None:
    run = af.look.repeated(planted(), length=10, seed=3)
    scores = af.look.head_scores(run)
    assert scores.best("previous")[0][:2] == (LAYER.format(0), 1)
    assert scores.best("previous")[0][2] > 0.99
    address, head, score = scores.best("induction")[0]
    assert (address, head) == (LAYER.format(1), 0) and score > 0.9
    assert scores.best("induction", 2)[1][2] < 0.5
    second = run.output.logits[:, 10:-1].argmax(-1)
    unique = [torch.unique(row[:10], return_counts=True) for row in run.inputs["input_ids"]]
    for row, (words, counts) in enumerate(unique):  # a word that occurs once has one continuation
        for t in range(10, 19):
            if int(run.inputs["input_ids"][row, t]) in words[counts == 1]:
                assert int(second[row, t - 10]) == int(run.inputs["input_ids"][row, t + 1])


def test_the_planted_head_has_the_score_and_its_silence_takes_it() -> None:
    ids = torch.tensor([[4, 7, 2, 9, 1, 4]])
    with torch.no_grad():
        run = af.trace(planted(), input_ids=ids)
    found = af.look.contributions(run, token=7)
    assert found.lines()[0][0] == f"{LAYER.format(1)} head 0"
    assert found.lines()[0][1] == pytest.approx(float(run.output.logits[0, -1, 7]), rel=1e-4)
    table = af.look.patch_table(run, by="head")
    assert table.token == 7 and table.values.shape == (2, HEADS)
    hurts = {(i, j) for i in range(2) for j in range(HEADS) if float(table.values[i, j]) < -1}
    assert hurts == {(0, 1), (1, 0)}
    quiet = af.look.patch(run, at=LAYER.format(1), heads=[0])
    close(quiet.output.logits, torch.zeros(1, 6, WORDS))
    again = float(quiet.output.logits[0, -1].log_softmax(-1)[7] - run.output.logits[0, -1].log_softmax(-1)[7])
    assert float(table.values[1, 0]) == pytest.approx(again, abs=1e-5)


def test_a_text_without_repetitions_has_no_induction_score() -> None:
    with torch.no_grad():
        scores = af.look.head_scores(af.trace(planted(), input_ids=torch.arange(8)[None]))
    assert scores.kinds["induction"][LAYER.format(1)].isnan().all()
    assert float(scores.kinds["previous"][LAYER.format(0)][1]) > 0.99
    with pytest.raises(ValueError, match="no score 'induktion'; .*induction"):
        scores.best("induktion")


# -- neurons ----------------------------------------------------------------------------------------------------------


def repeating() -> Any:
    """Return a description whose second layer runs three times."""
    return af.override(model_of("llama").spec, {"decoder.order": (0, 1, 1, 1)})


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bert", "repeating"])
def test_units_of_a_layer_add_up_to_it(family: str) -> None:
    model = af.build(repeating(), seed=0) if family == "repeating" else model_of(family)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("down.bias"):  # belongs to no unit
                parameter.zero_()
        run = af.trace(model, **inputs_of(family))
    whole, units = (look(run, position=[0, -1]) for look in (af.look.contributions, af.look.neurons))
    assert torch.equal(whole.tokens, units.tokens)
    sums: dict[str, Any] = {}
    for name, shares in units.shares.items():  # contributions have one line for all runs of a layer
        address = name.split(",")[0]
        sums[address] = sums.get(address, 0) + shares.sum(1)
    assert sums.keys() == {name for name in whole.by_sublayer() if "feedforward" in name}
    for address, total in sums.items():
        close(total, whole.by_sublayer()[address])


def test_the_planted_unit_matters_most() -> None:
    model, word = model_of("gpt2"), 7
    with torch.no_grad():
        down = model.decoder.layers[1].feedforward.op.down
        down.weight[:, 3] = 5 * model.head.out.weight[word]
        model.decoder.layers[1].feedforward.op.up.bias[3] = 4.0
        run = af.trace(model, **{name: value[:1] for name, value in inputs_of("gpt2").items()})
        best = af.look.neurons(run, token=word).best(most=4)
    assert best[0][:2] == ("decoder.layers.1.feedforward", 3) and best[0].activation > 1
    assert best[0].share > 3 * abs(best[1].share) and len(best) == 4
    without = af.override(model.spec, {"decoder.layers": Block(attention=model.spec.decoder.layers.steps["attention"])})
    with pytest.raises(ValueError, match="no feed-forward layers"):
        af.look.neurons(af.trace(af.build(without, seed=0), **inputs_of("gpt2")))


# -- patching ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5"])
def test_patching_everything_nothing_and_something(family: str) -> None:
    one, other = run_of(family), run_of(family, slice(1, 2))
    stack = "encoder" if family == "bert" else "decoder"
    assert not torch.allclose(one.output.logits, other.output.logits)
    everything = af.look.patch(one, other, at=f"{stack}.layers.*")
    close(everything.output.logits, other.output.logits)
    nothing = af.look.patch(one, other, at=f"{stack}.layers.0", positions=[])
    assert torch.equal(nothing.output.logits, one.output.logits)
    same = af.look.patch(one, at=f"{stack}.layers.*.attention", heads=[0, 1], scale=1.0)
    close(same.output.logits, one.output.logits)
    step = f"{stack}.layers.1.feedforward"
    silent = af.look.patch(one, at=step).keeping(f"{step}.branch")
    assert float(silent[f"{step}.branch"].abs().max()) == 0.0
    last = one.output.logits.shape[1] - 1
    at_last = af.look.patch(one, other, at=f"{stack}.layers.1", positions=[last])
    close(at_last.output.logits[:, last], other.output.logits[:, last])
    assert torch.equal(at_last.output.logits[:, :last], one.output.logits[:, :last])
    table = af.look.patch_table(one, other, by="position", token=5)
    expected = other.output.logits[0, -1].log_softmax(-1)[5] - one.output.logits[0, -1].log_softmax(-1)[5]
    assert float(table.values[-1, -1]) == pytest.approx(float(expected), abs=1e-4)
    assert float(table.values[-1, :-1].abs().max()) < 1e-5  # after the last layer tokens no longer interact


def test_a_layer_that_runs_again_is_patched_each_time() -> None:
    """Every pass through the layer gets the value of the same pass of the other run."""
    model = af.build(repeating(), seed=0)
    with torch.no_grad():
        one, other = (af.trace(model, input_ids=inputs_of("llama")["input_ids"][row : row + 1]) for row in (0, 1))
    name = "decoder.layers.1.feedforward"
    theirs = other.keeping(f"{name}.branch").kept[f"{name}.branch"]
    assert len(theirs) == 3 and not torch.allclose(theirs[0], theirs[2])
    patched = af.look.patch(one, other, at=name)
    put = patched.keeping(f"{name}.branch").kept[f"{name}.branch"]
    assert all(torch.equal(a, b) for a, b in zip(put, theirs, strict=True))
    table = af.look.patch_table(one, other, by="sublayer", token=5)
    change = patched.output.logits[0, -1].log_softmax(-1)[5] - one.output.logits[0, -1].log_softmax(-1)[5]
    assert float(table.values[table.rows.index(name), 0]) == pytest.approx(float(change), abs=1e-5)
    shorter = SimpleNamespace(keeping=lambda *_: SimpleNamespace(kept={f"{name}.branch": theirs[:2]}))
    with pytest.raises(ValueError, match=f"{name}.branch: the other run has no value.*pass 3"):
        af.look.patch(one, shorter, at=name)


def test_sublayers_by_table() -> None:
    run = run_of("gpt2")
    table = af.look.patch_table(run, by="sublayer")
    assert table.rows == tuple(f"decoder.layers.{i}.{name}" for i in (0, 1) for name in ("attention", "feedforward"))
    alone = af.look.patch(run, at=table.rows[2]).output.logits[0, -1].log_softmax(-1)[table.token]
    assert float(table.values[2, 0]) == pytest.approx(float(alone) - table.before, abs=1e-5)


def test_mistakes_are_one_sentence() -> None:
    run, long = run_of("gpt2"), None
    with torch.no_grad():
        long = af.trace(model_of("gpt2"), input_ids=torch.ones(1, 12, dtype=torch.long))
    for call, line in (
        (lambda: af.look.patch(run, at="decoder.layers.7"), "no address matches 'decoder.layers.7'; "),
        (lambda: af.look.patch(run, at="decoder.layers.0.feedforward", heads=[0]), "decoder.layers.0.attention"),
        (lambda: af.look.patch(run, at=LAYER.format(0), heads=[3]), "no head 3; there are 3"),
        (lambda: af.look.patch(run, at="decoder.layers.0", positions=[9]), "no position 9 at decoder.layers.0"),
        (lambda: af.look.patch(run, long, at="decoder.layers.0"), "the texts have different lengths; give positions"),
        (lambda: af.look.patch_table(run, by="heads"), "by='heads'; .*head"),
        (lambda: af.look.patch_table(run_of("gpt2", slice(0, 2))), "a patch table needs a run of one text"),
        (lambda: af.look.contributions(run, position=9), "no position 9; the model scores 9"),
        (lambda: af.look.contributions(run, token=50), "from 0 to 49"),
        (lambda: af.look.routing(run), "no experts"),
        (lambda: af.look.repeated(model_of("t5")), "score a run of your own"),
    ):
        with pytest.raises(ValueError, match=line):
            call()
    with pytest.raises(KeyError, match="no attention at 'decoder.layers.3.attention'"):
        af.look.attention(run)["decoder.layers.3.attention"]


def test_a_changed_run_is_looked_at_as_changed() -> None:
    changed = run_of("gpt2", change={"decoder.layers.0": lambda x, _: x * 2})
    close(af.look.logit_lens(changed).logits(-1), changed.output.logits)
    found = af.look.contributions(changed, token=3)
    assert not torch.allclose(found.scores, run_of("gpt2").output.logits[0, -1, 3])
    assert len(changed.keeping("*").kept) == len(addresses(changed.model))
    close(af.look.stream_norms(changed)[0], af.look.stream_norms(run_of("gpt2"))[0])


def test_contributions_where_the_skip_is_normed() -> None:
    spec = model_of("gpt2").spec
    steps = {f"decoder.layers.{name}": step.as_kind(NormedShortcut) for name, step in spec.decoder.layers.items()}
    model = af.build(af.override(spec, steps), seed=0).eval()
    with torch.no_grad():
        run = af.trace(model, **inputs_of("gpt2"))
    close(af.look.contributions(run, token=3).values.sum(0), run.output.logits[0, -1:, 3].double(), 1e-5)


def test_layers_that_run_again_are_numbered_from_the_first_time() -> None:
    model = af.build(repeating(), seed=0)
    found = [(step.layer, step.time) for step in steps(model.decoder) if step.branch.endswith("attention.branch")]
    assert found == [("decoder.layers.0", 0), *(("decoder.layers.1", time) for time in range(3))]


def test_contributions_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of("bert")
    whole = af.look.contributions(run, position=range(9))
    monkeypatch.setattr("anyformer.look.attribution.CHUNK", 2)
    close(af.look.contributions(run, position=range(9)).values, whole.values)


# -- figures ----------------------------------------------------------------------------------------------------------


def test_figures() -> None:
    pytest.importorskip("matplotlib")
    run = run_of("gpt2")
    words = [f"$t{i}" for i in range(9)]
    figures = [
        af.look.attention(run)[LAYER.format(0)].figure(tokens=words), af.look.logit_lens(run).figure(),
        af.look.contributions(run).figure(), af.look.patch_table(run, by="head").figure(),
        af.look.head_scores(run).figure(),
    ]  # fmt: skip
    for figure in figures:
        figure.canvas.draw()
        assert figure.axes


def test_a_table_has_room_for_its_columns() -> None:
    """A column is less than an inch wide with words, and narrower without."""
    figures = pytest.importorskip("anyformer.look.figures")

    def width(across: int, words: list[list[str]] | None) -> float:
        return figures.table(torch.rand(1, across), words, ["row"], ["x"] * across).get_size_inches()[0]

    plain, written = (width(20, words) - width(10, words and [words[0][:10]]) for words in (None, [["word"] * 20]))
    assert 0 < plain < written < 10


# -- real checkpoints -------------------------------------------------------------------------------------------------


def test_attention_of_stories_is_transformers(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))
    import stories

    monkeypatch.delitem(sys.modules, "stories")
    model, encode = stories.load(shared_data / "weights" / "stories260K")
    ids = torch.tensor([encode("Once upon a time there was a dog and a dog")])
    af.save(model, tmp_path, format="hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    with torch.no_grad():
        expected = theirs(input_ids=ids, output_attentions=True)
        run = af.trace(model, input_ids=ids)
    found = af.look.attention(run)
    assert len(found.maps) == len(expected.attentions) == 5
    for ours, weights in zip(found.maps, expected.attentions):
        close(ours.weights, weights, 1e-5)
    close(af.look.logit_lens(run).logits(-1), expected.logits, 1e-4)
    close(af.look.contributions(run).values.sum(0), expected.logits[0, -1:].max(-1).values, 1e-4)
