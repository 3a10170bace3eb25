"""Numbers of lecture 4's worked examples against torch, transformers and their own limits."""

from __future__ import annotations

import pytest
import torch

from anyformer_course import show

pytestmark = [pytest.mark.xdist_group("course-4"), pytest.mark.usefixtures("shared_show")]


def rows(shown, title):
    return next(table.rows for table in shown.tables if table.title.startswith(title))


def test_rope_is_the_rotation_of_complex_numbers():
    shown = show("rope", "we know that", before="of course", width=4)
    x = torch.tensor([row[1:] for row in rows(shown, "vectors")])
    turned = torch.tensor([row[2:] for row in rows(shown, "rotated")])[len(x) :]  # after two words
    angle = torch.outer(torch.arange(2.0, 2 + len(x)), 10000.0 ** -torch.tensor([0, 0.5]))
    expected = torch.view_as_complex(x.unflatten(-1, (2, 2))) * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(turned, torch.view_as_real(expected).flatten(1))


def test_sinusoids_are_those_of_transformers():
    from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding

    oracle = RoFormerSinusoidalPositionalEmbedding(5, 8)
    oracle.weight.data = oracle.create_weight() if hasattr(oracle, "create_weight") else oracle.weight.data
    vectors = torch.tensor([row[2:] for row in rows(show("positions"), "sinusoidal")])
    halves = torch.cat((vectors[:, 0::2], vectors[:, 1::2]), 1)  # sines first
    torch.testing.assert_close(halves, oracle(torch.Size((1, 5))), atol=1e-6, rtol=1e-5)


def test_blocks_give_exact_attention():
    for block in (1, 3, 5, 12):
        assert rows(show("flash", block=block), "'too'")[-1][-1] < 1e-6


def test_as_many_summaries_as_words_give_full_attention():
    differences = {row[0]: row[4] for row in rows(show("mixers", few=12), "mixers")}
    assert differences["linformer"] < 1e-6 and differences["nystromformer"] < 1e-5
    few = {row[0]: row[3] for row in rows(show("mixers", few=4), "mixers")}
    assert few["linformer"] == few["nystromformer"] == 4


def test_learned_positions_lack_three_properties():
    answers = {row[0]: row[1:] for row in rows(show("positions"), "five")}
    assert all(answers["sinusoidal"]) and all(answers["rotary"])
    assert answers["learned"] == [True, False, False, False, True]


def test_the_error_on_glue_falls_from_the_oldest_model_to_the_best():
    shown = show("glue", count=False)
    scores = [row[5] for row in shown.tables[0].rows]
    assert f"is {(100 - scores[0]) / (100 - max(scores)):.1f} times smaller than GPT's" in shown.says


@pytest.mark.parametrize(("name", "inputs", "options", "message"), [
    ("positions", ["a b"], {"scheme": "sine"}, "no scheme"),
    ("rope", ["a b"], {"width": 3}, "even"),
    ("relative", ["a b"], {"parents": [0]}, "parents has 1"),
    ("mixers", ["a b c d e"], {}, "multiple"),
    ("modifications", ["GELUU"], {}, "no row"),
    ("glue", ["xtreme"], {}, "no test"),
])  # fmt: skip
def test_mistakes_are_one_line(name, inputs, options, message):
    with pytest.raises(ValueError, match=message) as error:
        show(name, *inputs, **options)
    assert "\n" not in str(error.value)


def test_positions_beyond_the_training_length_are_not_learned():
    from anyformer_course.shows import longer

    rule = torch.arange(36).view(6, 6) % 6
    ids = longer.texts(200, 40, rule, torch.Generator().manual_seed(0))
    followed = (rule[ids[:, :-2], ids[:, 1:-1]] == ids[:, 2:]).float().mean()
    assert float(followed) == pytest.approx(0.9 + 0.1 / 6, abs=0.01)
    learned, _, _, alibi = rows(show("longer"), "loss by position")
    assert alibi[-1] - alibi[1] < 0.3 < learned[-1] - learned[1]


def test_every_row_of_the_table_has_its_scores():
    from anyformer_course.lab.narang_table import ROWS
    from anyformer_course.lab.narang_tasks import FINE_TUNED

    assert [*FINE_TUNED] == [row.name for row in ROWS]
    scores = rows(show("modifications", "SwiGLU"), "published: scores")
    assert scores == [["SwiGLU", 76.0, 18.2, 24.34, 27.02], ["Vanilla Transformer", 71.66, 17.78, 23.02, 26.62]]


def test_sizes_are_those_of_the_configs():
    names = "gpt2 transformer-big albert-base whisper-tiny switch-base-8 resnet-50 swin-tiny"
    assert rows(show("count", names), "sizes") == [
        ["gpt2", "12", 768, 3072, 12], ["transformer-big", "6 + 6", 1024, 4096, 16],
        ["albert-base", "12", 768, 3072, 12], ["whisper-tiny", "4 + 4", 384, 1536, 6],
        ["switch-base-8", "12 + 12", 768, 3072, 12],
    ]  # fmt: skip
    assert all(table.title != "sizes" for table in show("count", "resnet-50").tables)


def test_the_longest_context_of_each_year():
    years = rows(show("context"), "the longest")
    models = rows(show("context"), "context")
    for year, tokens, _ in years:
        assert tokens == max(row[2] for row in models if row[1].startswith(year))


def test_the_order_of_the_steps_is_that_of_the_models():
    gpt1, gpt2 = (row[1:] for row in rows(show("draw", "gpt1 gpt2"), "layers"))
    assert gpt1 == ["decoder", 12, "masked attention, add, norm, feedforward, add, norm"]
    assert gpt2 == ["decoder", 12, "norm, masked attention, add, norm, feedforward, add"]
    encoder, decoder = (row[1:3] for row in rows(show("draw", "transformer-base"), "layers"))
    assert (encoder, decoder) == (["encoder", 6], ["decoder", 6])


def test_the_tree_has_the_depth_of_each_word():
    shown = show("relative", "The dog chased another dog", parents=[1, 2, -1, 4, 2])
    assert [row[1:] for row in rows(shown, "tree")] == [
        ["dog", 2], ["chased", 1], ["(root)", 0], ["dog", 2], ["chased", 1]
    ]  # fmt: skip
