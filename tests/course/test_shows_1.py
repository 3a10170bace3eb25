"""Numbers of lecture 1's worked examples, compared with torch and with the papers."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from anyformer_course import show

pytestmark = [pytest.mark.xdist_group("course-1"), pytest.mark.usefixtures("shared_show")]


def row(shown, name, table=0):
    return next(row for row in shown.tables[table].rows if row[0] == name)


def conv(*widths, groups=1):
    a, b, kernel = widths
    return nn.Conv2d(a, b, kernel, groups=groups)


def alexnet():
    return [
        conv(3, 96, 11), conv(96, 256, 5, groups=2), conv(256, 384, 3), conv(384, 384, 3, groups=2),
        conv(384, 256, 3, groups=2), nn.Linear(256 * 6 * 6, 4096), nn.Linear(4096, 4096), nn.Linear(4096, 1000),
    ]  # fmt: skip


def vgg():
    widths = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    dense = [nn.Linear(512 * 7 * 7, 4096), nn.Linear(4096, 4096), nn.Linear(4096, 1000)]
    return [*(conv(a, b, 3) for a, b in pairwise(widths)), *dense]


@pytest.mark.parametrize(("name", "layers"), [("alexnet", alexnet), ("vgg-16", vgg)])
def test_convolutional_networks_have_as_many_parameters_as_layers_of_torch(name, layers):
    with torch.device("meta"):
        expected = sum(parameter.numel() for layer in layers() for parameter in layer.parameters())
    assert row(show("cnn", name), name)[3] == expected


def test_published_sizes_of_convolutional_networks_are_near_the_counts():
    for name, _, _, counted, published, *_ in show("cnn", "lenet-5 alexnet vgg-16 googlenet").tables[0].rows:
        assert counted == pytest.approx(published, rel=0.04), name


def test_spans_are_those_of_the_paper():
    shown = show("spans", spans="for inviting / last")
    assert row(shown, "encoder reads")[2] == "Thank you <X> me to your party <Y> week ."
    assert row(shown, "decoder writes")[2] == "<X> for inviting <Y> last <Z>"


def test_norms_are_those_of_torch():
    shown, x = show("norms", "2 5 -1 4"), torch.tensor([2.0, 5.0, -1.0, 4.0])
    for name, expected in (
        ("LayerNorm: (x - mean) / deviation", nn.functional.layer_norm(x, (4,), eps=0.0)),
        ("RMSNorm: x / rms", nn.functional.rms_norm(x, (4,), eps=0.0)),
    ):
        assert row(shown, name)[1:5] == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_state_space_is_a_convolution_only_without_selection():
    table = show("state-space", "1 0 0 2 0 3").tables[0]
    x, y, kernel = (torch.tensor([row[table.columns.index(name)] for row in table.rows]) for name in ("x", "y", "K[t]"))
    expected = nn.functional.conv1d(x[None, None], kernel.flip(0)[None, None], padding=len(x) - 1)[0, 0, : len(x)]
    assert y.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    selective = show("state-space", "1 0 0 2 0 3", selective=True).tables[0]
    states = [row[3] for row in selective.rows]
    assert states[0] == states[1] == states[2] != states[3]


def test_stages_have_the_shapes_of_the_papers():
    shapes = [row[3] for row in show("stages", "resnet-34 vit-b16 swin-tiny").tables[0].rows]
    assert shapes == [
        "64 x 56 x 56", "128 x 28 x 28", "256 x 14 x 14", "512 x 7 x 7", "768 x 14 x 14",
        "96 x 56 x 56", "192 x 28 x 28", "384 x 14 x 14", "768 x 7 x 7",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "inputs", "options", "message"), [
    ("cnn", ("alexnt",), {}, "alexnet"), ("stages", ("gpt2",), {}, "does not read pictures"),
    ("router", ("a b",), {"top": 9}, "top"), ("spans", (), {"spans": "hello"}, "no span"),
    ("state-space", ("one",), {}, "numbers"), ("prompts", ("abc",), {}, "pairs of letters"),
    ("pretrained", ("nothing",), {}, "no published figures"), ("objectives", ("a b",), {"prefix": 5}, "prefix"),
    ("latent", ("gpt2",), {}, "latent attention"), ("growth", ("speed",), {}, "no figure"),
])  # fmt: skip
def test_mistakes_are_one_line(name, inputs, options, message):
    with pytest.raises(ValueError, match=message) as error:
        show(name, *inputs, **options)
    assert "\n" not in str(error.value)


def test_a_router_scales_the_probabilities_of_its_experts_to_sum_1():
    for _, probabilities, weights in show("router", "a b c d", top=2).tables[0].rows:
        p, w = ([float(each.split(": ")[1]) for each in cell.split(", ")] for cell in (probabilities, weights))
        assert sum(w) == pytest.approx(1, abs=0.011) and w[0] == pytest.approx(p[0] / sum(p), abs=0.03)


def test_errors_of_the_trained_gpt_are_those_of_the_results_file():
    from anyformer_course.results import judged_run, read

    figures = judged_run(read("in-context-regression"))["figures"]
    pairs, ours, bayes, ratio = show("bayes", 0.5, tasks=20).tables[0].rows[-1]
    assert float(ours) == figures[f"error after {pairs} pairs, noise 0.5"]
    assert float(ratio) == pytest.approx(float(ours) / float(bayes), abs=1e-4)
    assert len(show("bayes", 0.7, tasks=20).tables) == 1, "nothing is stored for this noise"


def test_latent_attention_needs_only_the_cached_vectors():
    one_token = dict(show("latent", "deepseek-v3").tables[1].rows)
    assert one_token["cached: latent vector c"] == 512 and one_token["keys of 128 heads, computed from c"] == 128 * 128
    assert next(value for name, value in one_token.items() if name.startswith("difference")) < 1e-5


def test_masked_words_are_not_seen_by_predictions():
    for rate in (0.2, 0.5):
        shown = show("objectives", "a b c d e f g h i j", rate=rate)
        assert row(shown, "masked words (encoder: BERT)")[3] == 10 * (1 - rate)
    reads, target = row(shown, "span corruption", table=1)[1:]
    assert reads.count("<X>") == target.count("<X>") == 1


def test_the_best_scale_is_smaller_for_faster_functions():
    best = [row[-1] for row in show("matching").tables[1].rows]
    assert best == sorted(best, reverse=True) and best[0] > best[-1]


def test_shifted_windows_connect_more_patches_with_every_layer():
    for layers, same, shifted in show("windows", "swin-tiny").tables[1].rows:
        assert same == 49 and shifted == (7 * layers) ** 2


def test_fine_tuning_a_generator_adds_nothing_and_lowers_the_loss():
    shown = show("generator", "a bird slept in the sun . <delim>")
    assert row(shown, "new parameters for the task", table=2)[1] == "0"
    assert [word for _, _, _, word, _ in shown.tables[1].rows] == ["a", "bird", "<end>"]


def test_electra_is_ahead_of_bert_at_equal_compute():
    pairs = [each for each in show("electra").tables[0].rows if each[-1] == 1]
    assert len(pairs) == 3 and all(each[6] > 0 for each in pairs)


def test_shared_layers_are_counted_as_often_as_they_are_used():
    layers = {row[0]: row[3] for row in show("pretrained", "albert-xxlarge t5-11b bert-base").tables[0].rows}
    assert layers == {"albert-xxlarge": 12, "t5-11b": 48, "bert-base": 12}
