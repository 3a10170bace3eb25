"""Reka's layout: images and sounds among tokens. Oracles are LLaVA and Whisper, whose parts it has."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from cases.llava import IMAGE
from catalogue import close, holds
from torch import Tensor
from unpublished import SOUND, description, illustrated, model

import anyformer as af
from anyformer import families
from anyformer.evaluate import invariants
from anyformer.evaluate.invariants import EXACT


def row(i: int) -> dict[str, Tensor]:
    given = illustrated()
    own = {"input_ids": given["input_ids"][i : i + 1], "input_features": given["input_features"][i : i + 1]}
    return own if i else {**own, "pixel_values": given["pixel_values"]}


def test_towers_are_those_of_their_families() -> None:
    """The text contains the outputs of CLIP and Whisper, each projected by two layers."""
    made, given = model("reka"), illustrated()
    sees: Any = af.build(families.find("clip_vision_model").read({**IMAGE, "image_size": 16})).eval()
    sees.load_state_dict({**sees.state_dict(), **made.image.model.state_dict()})
    classifier = {**SOUND, "num_labels": 2, "vocab_size": 60, "pad_token_id": 3, "bos_token_id": 1, "eos_token_id": 2,
                  "decoder_start_token_id": 1, "architectures": ["WhisperForAudioClassification"]}  # fmt: skip
    hears: Any = af.build(families.find("whisper").read(classifier)).eval()
    hears.load_state_dict({**hears.state_dict(), **made.audio.model.state_dict()})
    with torch.no_grad():
        out = made(**given)
        seen = sees(pixel_values=given["pixel_values"], output_hidden_states=True).hidden_states[-1][:, 1:]
        heard = hears(input_features=given["input_features"], output_hidden_states=True).hidden_states[-1]
        for name, states in (("image", seen), ("audio", heard)):
            tower = getattr(made, name)
            states = tower.projector.down(F.gelu(tower.projector.up(states))).flatten(0, 1)
            close(out[f"{name}_hidden_states"], states)
        vectors = made.embedding.tokens(given["input_ids"])
        vectors[given["input_ids"] == 4] = out.image_hidden_states
        vectors[given["input_ids"] == 3] = out.audio_hidden_states
        close(made(inputs_embeds=vectors).logits, out.logits)


def test_frames_of_a_video_stand_one_behind_the_other() -> None:
    """A video of three frames gives the same result as three images in order."""
    made, generator = model("reka"), torch.Generator().manual_seed(1)
    video = torch.randn(2, 3, 3, 16, 16, generator=generator)  # two videos of three frames
    ids = torch.randint(5, 60, (2, 18), generator=generator)
    ids[:, 2:14] = 4
    pictures = torch.stack([video[i, :, frame] for i in range(2) for frame in range(3)])
    with torch.no_grad():
        seen, each = made(input_ids=ids, pixel_values=video), made(input_ids=ids, pixel_values=pictures)
        close(seen.logits, each.logits, 0)
        backwards = made(input_ids=ids, pixel_values=video.flip(2))
        assert (backwards.logits[:, -1] - seen.logits[:, -1]).abs().max() > 1e-3
    options = {"max_new_tokens": 5, "suppress_tokens": [3, 4], "eos_token_id": [], "pad_token_id": 7}
    written = af.generate(made, input_ids=ids, pixel_values=video, **options)
    assert torch.equal(af.generate(made, input_ids=ids, pixel_values=pictures, **options), written)
    assert torch.equal(af.generate(made, input_ids=ids[1:], pixel_values=video[1:], **options)[0], written[1])


def test_invariants() -> None:
    made, given = model("reka"), illustrated()
    holds(invariants.check_padding, made, given)
    holds(invariants.check_gradients, made, {**given, "labels": given["input_ids"]}, EXACT)
    with torch.no_grad():
        close(torch.cat([made(**row(i)).logits for i in range(2)]), made(**given).logits)


def test_n1_g1_what_is_written_after_a_picture_and_a_sound() -> None:
    made, given = model("reka"), illustrated()
    later = given["input_ids"].clone()
    later[:, 12:] = 9
    with torch.no_grad():
        close(made(**{**given, "input_ids": later}).logits[:, :12], made(**given).logits[:, :12])
    options = {"max_new_tokens": 6, "suppress_tokens": [3, 4], "eos_token_id": [], "pad_token_id": 7}
    expected = af.generate(made, **given, **options, use_cache=False)
    assert expected.shape == (2, 20) and torch.equal(af.generate(made, **given, **options), expected)
    for i in range(2):
        assert torch.equal(af.generate(made, **row(i), **options)[0], expected[i])
    other = {**given, "input_features": -given["input_features"]}
    beams = {**options, "num_beams": 3}
    assert torch.equal(af.generate(made, **other, **beams), af.generate(made, **other, **beams, use_cache=False))


def test_every_field_shapes_the_description() -> None:
    family, plain = families.find("reka"), description("reka")
    for name, value in {"d_model": 24, "encoder_layers": 3, "encoder_attention_heads": 3, "encoder_ffn_dim": 30,
                        "num_mel_bins": 7, "max_source_positions": 9}.items():  # fmt: skip
        spec = description("reka", audio_config={**SOUND, name: value})
        assert spec.replace(source={}) != plain.replace(source={})
        assert family.fields["audio_config"].recover(spec)[name] == value
    assert family.fields["audio_token_index"].recover(description("reka", audio_token_index=2)) == 2
