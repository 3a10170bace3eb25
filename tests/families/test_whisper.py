"""What the catalogue-wide suite cannot see of Whisper: augmentation, masks of frames, and how it starts to write."""

from __future__ import annotations

import copy

import pytest
import torch
from catalogue import cases, close, make_inputs, ours, published, shared

from anyformer.part import Site
from anyformer.parts.audio import SpecAugment

CASES = {case.id: case for case in cases() if case.model_type == "whisper"}
WRITER = CASES["WhisperForConditionalGeneration"]


def test_training_equals_published() -> None:
    """The loss and its gradients, with every kind of chance at 0 and labels that the decoder reads moved."""
    theirs, mine = copy.deepcopy(published(WRITER)[0]).train(), ours(WRITER).train()
    inputs = {n: v for n, v in make_inputs(WRITER, labels=True).items() if n != "decoder_input_ids"}
    losses = theirs(**inputs).loss, mine(**inputs).loss
    close(losses[1], losses[0], 1e-6)
    for loss in losses:
        loss.backward()
    close(mine.embedding.convolutions[0].weight.grad, theirs.model.encoder.conv1.weight.grad)
    close(mine.decoder_embedding.tokens.weight.grad, theirs.model.decoder.embed_tokens.weight.grad)
    assert mine.embedding.position.weight.grad is None  # the sines are stored, and stay


def test_hidden_frames_are_silent() -> None:
    """Zeros in the place of frames and channels, where something was said, and only in training."""
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
    """As published: what is padded is silence, which is heard."""
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
    ("shape", "message"),
    [((2, 8, 35), "36 frames here, got 35"), ((2, 7, 36), "8 channels"), ((2, 36), "8 channels")],
)
def test_other_spectrograms_are_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shared(WRITER)(input_features=torch.zeros(shape), decoder_input_ids=torch.tensor([[2], [2]]))
