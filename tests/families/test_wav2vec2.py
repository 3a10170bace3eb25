"""Tests of wav2vec 2.0 in addition to the catalogue-wide suite: pretraining on sound."""

from __future__ import annotations

import copy

import pytest
import torch
from catalogue import close, every_case, make_inputs, ours, published, shared

import anyformer as af
from anyformer import families
from anyformer.parts.embedding.spec_augment import spans
from anyformer.parts.embedding.waveform import ConvolutionStem
from anyformer.parts.head.contrastive import draw_negatives

CASES = {case.id: case for case in every_case() if case.model_type == "wav2vec2"}
LEARNER = CASES["Wav2Vec2ForPreTraining-stable"]


def test_codes_are_drawn_as_published() -> None:
    """With the same random draws, equal codes, numbers of used codes and gradients, with all or some frames counted."""
    theirs, mine = copy.deepcopy(published(LEARNER)[0].quantizer).train(), ours(LEARNER).head.quantizer.train()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 13, theirs.weight_proj.in_features, generator=generator)
    for counted in (None, torch.rand(2, 13, generator=generator) < 0.5):
        torch.manual_seed(3)
        expected, many = theirs(x, counted)
        torch.manual_seed(3)
        found, numbers, used = mine(x, counted)
        close(found, expected), close(used, many)
        assert len(numbers.unique()) > 5
        for out, number in ((expected, many), (found, used)):
            (out.pow(2).sum() + number).backward()
        close(mine.choose.weight.grad, theirs.weight_proj.weight.grad)
        close(mine.codes.grad.flatten(0, 1), theirs.codevectors.grad[0])
        mine.zero_grad(), theirs.zero_grad()


def test_the_loss_teaches_as_published() -> None:
    theirs, mine, inputs = copy.deepcopy(published(LEARNER)[0]), ours(LEARNER), make_inputs(LEARNER, labels=True)
    losses = theirs(**{n: v.clone() for n, v in inputs.items()}), mine(**inputs)
    for out in losses:
        out.loss.backward()
    close(losses[1].contrastive_loss, losses[0].contrastive_loss), close(losses[1].loss, losses[0].loss)
    close(mine.head.states.weight.grad, theirs.project_hid.weight.grad)
    close(mine.head.quantizer.codes.grad.flatten(0, 1), theirs.quantizer.codevectors.grad[0])
    stem, other = mine.embedding.stem.convolutions[0], theirs.wav2vec2.feature_extractor.conv_layers[0].conv
    close(stem.weight.grad, other.weight.grad)


def test_wrong_codes_are_those_of_other_hidden_frames() -> None:
    hidden = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 1, 0, 1, 0]]).bool()
    torch.manual_seed(0)
    drawn = draw_negatives(hidden, 6000)
    for row in range(2):
        places = set((hidden[row].nonzero()[:, 0] + 6 * row).tolist())
        for frame in range(6):
            found, times = drawn[row, frame].unique(return_counts=True)
            if not hidden[row, frame]:
                assert found.tolist() == [6 * row]
                continue
            assert set(found.tolist()) == places - {frame + 6 * row}
            assert (times / 6000 - 1 / len(found)).abs().max() < 0.03


def test_negatives_need_hidden_frames() -> None:
    inputs = make_inputs(LEARNER, labels=True)
    with pytest.raises(ValueError, match="mask_time_indices"):
        shared(LEARNER)(**{n: v for n, v in inputs.items() if n != "mask_time_indices"})
    with pytest.raises(ValueError, match="sampled_negative_indices.*shape"):
        shared(LEARNER)(**{**inputs, "sampled_negative_indices": inputs["sampled_negative_indices"][:, 1:]})


def test_hidden_spans_lie_in_a_recording_and_are_as_many_as_fit() -> None:
    whole = torch.ones(200, 5, dtype=torch.bool)
    assert spans(whole, 1.0, 5, 1).all()  # one span is the whole row
    with pytest.raises(ValueError, match="6 .*5"):
        spans(whole, 1.0, 6, 1)
    found = spans(whole, 1.0, 3, 9)  # no two spans fit: one, at any of three places
    assert {tuple(row) for row in found.int().tolist()} == {(1, 1, 1, 0, 0), (0, 1, 1, 1, 0), (0, 0, 1, 1, 1)}
    real = whole.clone()
    real[:, 4] = False
    assert {tuple(row) for row in spans(real, 0.0, 2, 1).int().tolist()} == {
        (1, 1, 0, 0, 0), (0, 1, 1, 0, 0), (0, 0, 1, 1, 0),
    }  # fmt: skip


def test_frames_of_25_ms_every_20_ms_where_nothing_is_said() -> None:
    stem = families.find("wav2vec2").read({}).embedding.stem
    assert (stem.hop, stem.reach) == (320, 400)  # samples, 16 per ms


def test_a_stem_may_be_one_convolution() -> None:
    stem = ConvolutionStem(widths=(4,), kernels=(10,), strides=(5,))
    assert (stem.hop, stem.reach, stem.frames(24), stem.frames(25)) == (5, 10, 3, 4)
    with pytest.raises(ValueError, match="0 widths.*0 kernels.*0 strides"):
        ConvolutionStem(widths=(), kernels=(), strides=())


def test_biases_of_an_adapter_start_as_published() -> None:
    """Uniform within 1 / sqrt(channels * kernel size), with the channels that the adapter reads."""
    config = {**CASES["Wav2Vec2Model-adapter"].config, "architectures": ["Wav2Vec2Model"]}
    model = af.build(families.find("wav2vec2").read(config), seed=0)
    biases = {name: p.detach() for name, p in model.named_parameters() if name.endswith("bias")}
    found = torch.cat([bias for name, bias in biases.items() if "adapter.convolutions" in name])
    assert config["output_hidden_size"] == 20 and config["adapter_kernel_size"] == 3 and len(found) == 80
    assert 0.9 * 60**-0.5 < float(found.abs().max()) <= 60**-0.5 and float(found.min()) < 0 < float(found.max())


def test_a_short_recording_has_no_voice() -> None:
    model = shared(CASES["Wav2Vec2ForXVector"])
    with pytest.raises(ValueError, match="6 frames.* 1"):
        model(input_values=torch.zeros(1, model.spec.embedding.stem.reach))


@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForXVector", "ForPreTraining"])
def test_what_has_no_adapter(kind: str) -> None:
    with pytest.raises(ValueError, match=f"add_adapter.*Wav2Vec2{kind}"):
        families.find("wav2vec2").read({"add_adapter": True, "architectures": [f"Wav2Vec2{kind}"]})


def test_features_are_those_of_the_stem() -> None:
    spec = shared(LEARNER).spec
    with pytest.raises(ValueError, match=r"head\.features.* 9.*embedding\.features.* 22"):
        spec.replace(head=spec.head.replace(features=9))
