"""Tests of Whisper in addition to the catalogue-wide suite: augmentation, frame masks, and the decoder's prompt."""

from __future__ import annotations

import copy

import pytest
import torch
from catalogue import close, every_case, make_inputs, ours, published, shared

import anyformer as af
from anyformer.parts.embedding.spec_augment import SpecAugment
from anyformer.specs.part import Site

transformers = pytest.importorskip("transformers")
CASES = {case.id: case for case in every_case() if case.model_type == "whisper"}
WRITER = CASES["WhisperForConditionalGeneration"]


def test_training_equals_published() -> None:
    """The loss and its gradients, with every drop probability at 0 and shifted labels as decoder input."""
    theirs, mine = copy.deepcopy(published(WRITER)[0]).train(), ours(WRITER).train()
    inputs = {n: v for n, v in make_inputs(WRITER, labels=True).items() if n != "decoder_input_ids"}
    losses = theirs(**inputs).loss, mine(**inputs).loss
    close(losses[1], losses[0], 1e-6)
    for loss in losses:
        loss.backward()
    close(mine.embedding.convolutions[0].weight.grad, theirs.model.encoder.conv1.weight.grad)
    close(mine.decoder_embedding.tokens.weight.grad, theirs.model.decoder.embed_tokens.weight.grad)
    assert mine.embedding.position.weight.grad is None  # the sines are stored and frozen


def test_hidden_frames_are_silent() -> None:
    """Zeros instead of frames and channels of the recording, only in training."""
    module = SpecAugment(time=0.4, time_span=3, channels=0.4, channel_span=2, learned=False).build(Site(width=8))
    assert not list(module.parameters())
    x, real = torch.ones(2, 24, 8), torch.arange(24) < torch.tensor([[24], [11]])
    assert torch.equal(module.eval()(x, real, None), x)
    torch.manual_seed(0)
    seen = module.train()(x, real, None)
    frames, channels = (seen == 0).all(-1), (seen == 0).all(1)
    assert frames.any(-1).all() and channels.any(-1).all() and not frames[1, 11:].any()
    assert torch.equal(seen == 0, frames[..., None] | channels[:, None])


def test_a_mask_of_frames_hides_nothing() -> None:
    """As published: padding is silence, which the encoder reads."""
    model, inputs = shared(WRITER), make_inputs(WRITER)
    mask = torch.ones(2, inputs["input_features"].shape[-1], dtype=torch.long)
    mask[1, 5:] = 0
    with torch.no_grad():
        expected = model(**inputs)
        assert torch.equal(model(**inputs, attention_mask=mask).logits, expected.logits)
        inputs.pop("input_features")
        again = model(**inputs, encoder_outputs=expected.encoder_last_hidden_state, attention_mask=mask)
    assert torch.equal(again.logits, expected.logits)


@pytest.mark.parametrize(
    ("shape", "message"), [((2, 8, 35), "36 frames.*35"), ((2, 7, 36), "8 channels"), ((2, 36), "8 channels")]
)
def test_other_spectrograms_are_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shared(WRITER)(input_features=torch.zeros(shape), decoder_input_ids=torch.tensor([[2], [2]]))


# -- the decoder's prompt ----------------------------------------------------------------------------------------------

SPECIAL = {
    "decoder_start_token_id": 50, "eos_token_id": 49, "bos_token_id": 49, "pad_token_id": 49, "max_length": 40,
    "lang_to_id": {"<|en|>": 51, "<|de|>": 52, "<|fr|>": 53}, "task_to_id": {"translate": 54, "transcribe": 55},
    "no_timestamps_token_id": 57, "is_multilingual": True, "max_initial_timestamp_index": 12,
    "suppress_tokens": [3, 9, 50, 54, 55, 56], "begin_suppress_tokens": [7, 49], "return_timestamps": False,
    "prev_sot_token_id": 56, "alignment_heads": [[0, 0], [1, 1]],
}  # fmt: skip


def multitask(folder, **more) -> tuple:
    """Return the published model and ours, from one folder with this generation_config.json."""
    theirs, _ = published(WRITER)
    theirs = copy.deepcopy(theirs)
    with torch.no_grad():  # different words at every position
        theirs.model.decoder.embed_positions.weight.mul_(6)
        theirs.proj_out.weight[58:].mul_(0.5)
    theirs.generation_config = transformers.GenerationConfig(**{**SPECIAL, **more})
    theirs.save_pretrained(folder)
    return theirs, af.load(folder)


WAYS = {
    "plain": {}, "language": {"language": "german"}, "code": {"language": "fr", "task": "translate"},
    "each": {"language": ["<|en|>", "French", "de"]}, "task": {"task": "transcribe"},
    "times": {"return_timestamps": True}, "all": {"language": "en", "task": "translate", "return_timestamps": True},
    "beams": {"language": "de", "num_beams": 3, "return_timestamps": True, "length_penalty": 0.5},
    "constrained": {"language": "en", "no_repeat_ngram_size": 2, "return_timestamps": True},
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_openings_and_times_as_published(way: str, tmp_path) -> None:
    theirs, mine = multitask(tmp_path)
    features = make_inputs(WRITER, batch=3)["input_features"]
    found = af.generate(mine, input_features=features, **WAYS[way])
    expected = theirs.generate(features, **WAYS[way], force_unique_generate_call=True)
    assert torch.equal(found, expected) and len(found.unique()) > 9  # not one word repeated
    times = found[:, 3:] > 57
    assert bool(times.any()) == bool(WAYS[way].get("return_timestamps"))


def test_a_text_without_an_end_fills_the_positions(tmp_path) -> None:
    """Published files have as many positions as `max_length`, and the prompt before the text uses some of them."""
    positions = WRITER.config["max_target_positions"]
    theirs, mine = multitask(tmp_path, max_length=positions, suppress_tokens=[49])
    features = make_inputs(WRITER)["input_features"]
    expected = theirs.generate(features, language="de", force_unique_generate_call=True)
    found = af.generate(mine, input_features=features, language="de")
    assert found.shape[1] == positions and torch.equal(found, expected)


def with_options(theirs, options):
    config = copy.deepcopy(theirs.generation_config)
    for name in ("language", "task", "return_timestamps"):
        setattr(config, name, options.get(name, getattr(config, name, None)))
    return config


@pytest.mark.parametrize("forced", [[[1, None], [2, 55]], [[1, 52], [2, 54], [3, 57]], [[1, 53]]], ids=str)
def test_forced_tokens_of_old_files(forced: list, tmp_path) -> None:
    theirs, mine = multitask(tmp_path, forced_decoder_ids=forced)
    features = make_inputs(WRITER, batch=2)["input_features"]
    found = af.generate(mine, input_features=features)
    prompt = theirs._retrieve_init_tokens(features, 2, with_options(theirs, {}), theirs.config, features.shape[-1], {})
    assert torch.equal(found[:, : prompt.shape[1]], prompt)
    words = af.generate(mine, input_features=features, language="en")
    assert words[0, :4].tolist() == [50, 51, 55, 57]  # options of the call override the stored ones


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "klingon"}, "valid: de, en, fr"), ({"language": "gerrman"}, "klingon|no token"),
        ({"task": "summarise"}, "transcribe"), ({"language": ["de", "fr"]}, "2 languages.* 3"),
        ({"is_multilingual": False, "task": "translate"}, "one language"),
        ({"no_timestamps_token_id": 4000}, "vocabulary"),
    ],
)  # fmt: skip
def test_what_it_cannot_be_told(options: dict, message: str, tmp_path) -> None:
    _, mine = multitask(tmp_path)
    with pytest.raises(ValueError, match=message):
        af.generate(mine, input_features=make_inputs(WRITER, batch=3)["input_features"], **options)


def test_times_without_tokens_for_them() -> None:
    inputs = {"input_features": make_inputs(WRITER)["input_features"], "task_to_id": {"transcribe": 5}}
    with pytest.raises(ValueError, match="timestamp|times"):
        af.generate(shared(WRITER), **inputs, task="transcribe", return_timestamps=True)


def test_a_draft_hears_for_itself(tmp_path) -> None:
    _, mine = multitask(tmp_path)
    features = make_inputs(WRITER, batch=2)["input_features"]
    expected = af.generate(mine, input_features=features, max_new_tokens=8)
    drafted = af.generate(mine, input_features=features, max_new_tokens=8, assistant_model=ours(WRITER))
    assert torch.equal(drafted, expected)
