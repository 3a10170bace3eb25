"""The worked examples of lecture 3, compared with tokenizers, torch and the model itself."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from anyformer_course import show
from anyformer_course.shows import _trained

pytestmark = [pytest.mark.xdist_group("course-3"), pytest.mark.usefixtures("shared_show")]


def rows(shown, title):
    return [row for table in shown.tables if table.title.startswith(title) for row in table.rows]


def test_bpe_counts_the_pairs_that_it_merges():
    corpus = "low low low lower lower newest newest"
    steps = rows(show("tokens", "lowest", merges=3, corpus=corpus), "BPE")
    # "l o" and "o w" occur 5 times each; the merged words are lo+w, then the text has 4 letters and a piece
    assert [step[2] for step in steps[1:3]] == [5, 5]
    assert steps[2][4] == "low e s t"


def test_letters_outside_ascii_are_several_bytes_until_they_are_merged():
    shown = show("tokens", "müde 😀", merges=20, corpus="müde müde müde")
    assert "6 letters and spaces (10 bytes) become" in shown.says
    steps = rows(shown, "BPE")
    assert steps[0][4].startswith(r"m \xc3 \xbc d e _ \xf0") and steps[-1][4].startswith("müde _")


def test_the_vector_of_cls_learns_whether_the_second_text_follows():
    shown = show("next-sentence")
    (_, before), (_, after) = rows(shown, "200 more pairs")
    assert before < 0.7 < 0.95 < after
    assert all((row[4] > 0.5) == (row[2] == "is next") for row in rows(shown, "pairs"))


@pytest.mark.parametrize(
    ("name", "text"), [("pointwise", "hello"), ("objectives", "hello you"), ("induction", "a b c")]
)
def test_a_short_text_needs_no_options(name, text):
    assert show(name, text).tables


def test_predicted_probabilities_are_the_models():
    small = _trained.train("gpt")
    ids = torch.tensor([[1, *small.ids("the dog chased")]])
    with torch.no_grad():
        loss = small.model(input_ids=ids, labels=ids).loss  # mean over three words
    shown = rows(show("predict", "the dog chased"), "each word")
    assert sum(row[2] for row in shown) == pytest.approx(-3 * float(loss), abs=1e-4)


def test_a_complete_sentence_is_not_a_continuation():
    starts = [row[1] for row in rows(show("which", "we like dogs .\nwe like the river .", start=4), "some")]
    assert starts == 2 * ["we like the river"]


def test_scores_become_probabilities():
    (_, best, p), (_, other, q), *_ = rows(show("predict", "the dog chased the"), "next word")
    assert math.exp(best - other) == pytest.approx(p / q, rel=1e-4)


def test_a_frozen_encoder_does_not_move():
    shown = show("tuning", frozen=True)
    assert [row[2] for row in rows(shown, "relative change")] == [0, 0, 0, None]
    everything, classifier = rows(shown, "what is trained")
    assert everything[1] < classifier[1] == rows(shown, "loss")[-1][1]
    assert everything[1] == rows(show("tuning"), "loss")[-1][1]


def test_beam_search_finds_a_likelier_text_than_greedy():
    found = {row[0]: row for row in rows(show("beams", "the", beams=3), "continuations")}
    greedy, beam = found["greedy"], found["beam search, 3 beams"]
    assert beam[2] > greedy[2] and beam[3] == pytest.approx(math.log(beam[2]))


def test_distillation_loss_is_the_kl_divergence():
    from anyformer_course.shows.distill import divergence

    torch.manual_seed(0)
    student, teacher = torch.randn(4, 7), torch.randn(4, 7)
    p, q = teacher.softmax(-1), student.softmax(-1)
    assert float(divergence(student, teacher, 1.0)) == pytest.approx(
        float((p * (p / q).log()).sum(-1).mean()), rel=1e-5
    )


def test_cls_is_all_that_the_classifier_reads():
    first, *others = rows(show("pooling", "win a free prize"), "change")
    assert first[1] > 1e-3 and all(row[1] == 0 < row[2] for row in others)


@pytest.mark.parametrize(("text", "words"), [
    ("The cat", "the cat"),
    ("The Dog chased the ball.", "the dog chased the ball ."),
    ("the [mask] was warm.", "the [MASK] was warm ."),
])  # fmt: skip
def test_small_models_read_ordinary_text(text, words):
    small = _trained.train("bert")
    assert small.words(text) == words.split()
    assert small.text(small.ids(text)) == words


def test_words_keep_the_capitals_of_the_corpus():
    words = _trained.spell("polish Polish POLISH us.", ["Polish", "polish", "US"])
    assert words == ["polish", "Polish", "polish", "US", "."]


@pytest.mark.parametrize(("name", "inputs"), [
    ("beams", ("The cat",)),
    ("fill", ("The [MASK] chased the ball.",)),
    ("last-state", ("Win a free prize now.",)),
    ("contextual", ("The dog chased the ball.", "The Dog slept.")),
    ("replaced", ("The dog barked.",)),
    ("walk", ("Once upon a time",)),
])  # fmt: skip
def test_shows_read_ordinary_text(name, inputs):
    assert show(name, *inputs).says == show(name, *(" ".join(_lower(text)) for text in inputs)).says


def _lower(text):
    return [word if word == "[MASK]" else word.lower() for word in text.replace(".", " .").split()]


def test_the_similarity_of_two_texts_needs_both_orders():
    assert "does not change" in show("formats").says
    assert "does not change" not in show("formats", both_orders=False).says


@pytest.mark.parametrize(("name", "inputs", "options", "message"), [
    ("predict", ("the unicorn",), {}, "does not know 'unicorn'; it learned .*, bird, "),
    ("chain", ("Le chien a volé",), {"source": "The dog slept"}, "does not know 'volé'"),
    ("fill", ("the dog",), {}, r"exactly one \[MASK\]"),
    ("next-sentence", ("one text .",), {}, "second text"),
    ("cache", (), {"kv_heads": 3}, "1, 2 or 4"),
    ("albert", ("bert-base",), {}, "not an ALBERT"),
    ("tuning", (), {"steps": 0}, "steps is 0"), ("next-sentence", (), {"steps": -1}, "steps is -1"),
    ("attention", (), {"width": 0}, "width is 0"), ("context", ("hello",), {}, "since is 'hello'"),
    ("objectives", ("hello",), {}, "two words"), ("ctc", ("  ",), {}, "the text is empty"),
    ("auxiliary", ("x" * 5000,), {}, r"\(5,002 characters\)"), ("which", (), {"start": 9}, "no line has more words"),
    ("decisions", ("x" * 5000,), {}, r"\(5,002 characters\)"),
])  # fmt: skip
def test_mistakes_have_one_line(name, inputs, options, message):
    with pytest.raises(ValueError, match=message) as error:
        show(name, *inputs, **options)
    assert "\n" not in str(error.value)


def test_the_page_has_the_stored_figures_of_the_drawn_emoji() -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "dit.md").read_text("utf-8")
    shares = dict(show("text-to-image").tables[0].rows)
    for names, marks in (("trained", ""), ("held out", "**")):
        with_guidance, without = (f"{100 * shares[f'{names}, guidance {guidance}']:.0f} %" for guidance in (4, 1))
        assert f"| {names} | {marks}{with_guidance}{marks} | {without} |" in page
    with pytest.raises(ValueError, match="stored are 1"):
        show("text-to-image", 2)
