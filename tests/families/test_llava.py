"""LLaVA beyond the catalogue's tiny cases: several pictures of several patches, and invalid inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.llava import CONFIG, IMAGE
from catalogue import Case, close, ours, published, randomise
from torch import Tensor, nn

import anyformer as af
from anyformer.models import EncoderModel, Tower
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.spectrogram import SpectrogramEmbedding
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.projector import Projector
from anyformer.specs.part import Site
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.io import Checkpoint

transformers = pytest.importorskip("transformers")

PATCHES = {**CONFIG, "vision_config": {**IMAGE, "image_size": 16}, "vision_feature_layer": [1, -2]}
CASE = Case("llava", "LlavaForConditionalGeneration", PATCHES, "patches")


def text() -> dict[str, Any]:
    """Two pictures in the first text, none in the second, one in the third; four patches each."""
    ids = torch.randint(5, 60, (3, 12), generator=torch.Generator().manual_seed(0))
    ids[0, 1:5] = ids[0, 6:10] = ids[2, 4:8] = 4
    pixels = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "pixel_values": pixels, "attention_mask": torch.ones_like(ids)}


def test_pictures_go_where_their_tokens_are() -> None:
    theirs, model, inputs = published(CASE)[0], ours(CASE), text()
    with torch.no_grad():
        expected, found = theirs(**inputs, labels=inputs["input_ids"]), model(**inputs, labels=inputs["input_ids"])
        for name in ("loss", "logits", "image_hidden_states"):
            close(found[name], expected[name])
        vectors = model.embedding.tokens(inputs["input_ids"])
        rest = {"pixel_values": inputs["pixel_values"], "inputs_embeds": vectors}
        close(model(**rest).logits, theirs(**rest).logits)
    turned = model(**{**inputs, "pixel_values": inputs["pixel_values"].flip(0)}).logits
    assert not torch.allclose(turned[0], found.logits[0]) and torch.allclose(turned[1], found.logits[1])


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"use_cache": False}], ids=["greedy", "beams", "no cache"])
def test_what_is_written_after_pictures(options: dict[str, Any]) -> None:
    inputs = text()
    more = {"max_new_tokens": 6, "suppress_tokens": [4], "do_sample": False, "pad_token_id": 3, **options}
    with torch.no_grad():
        expected = published(CASE)[0].generate(**inputs, **more)
    assert torch.equal(af.generate(ours(CASE), **inputs, **more), expected)


def test_names_of_other_years(tmp_path) -> None:
    """Files of the hub have vision_tower.vision_model, and some have the class's current module names."""
    from safetensors.torch import save_file

    model, folder = ours(CASE), published(CASE)[1]
    with Checkpoint(folder) as stored:
        tensors = {name: stored.read(name).clone() for name in stored.names}
    old = {n.replace("vision_tower.", "vision_tower.vision_model."): t for n, t in tensors.items()}
    today = {"language_model.lm_head.": "lm_head.", "language_model.model.": "model.language_model.",
             "vision_tower.": "model.vision_tower.", "multi_modal": "model.multi_modal"}  # fmt: skip
    new = {next(b + n.removeprefix(a) for a, b in today.items() if n.startswith(a)): t for n, t in tensors.items()}
    for kind, names in (("old", old), ("new", new)):
        place = tmp_path / kind
        place.mkdir()
        save_file(names, place / "model.safetensors", metadata={"format": "pt"})
        (place / "config.json").write_text((folder / "config.json").read_text())
        again = af.load(place).state_dict()
        assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())


def test_a_tower_that_hears() -> None:
    """The same layout with a sound instead of a picture (Reka's layout), and with both."""
    block = Block(
        attention=Sublayer(pre_norm=LayerNorm(), op=Attention(num_heads=2)),
        feedforward=Sublayer(pre_norm=LayerNorm(), op=MLP(width=24)),
    )
    hears = EncoderModel(
        width=12, embedding=SpectrogramEmbedding(channels=5), encoder=Stack(layers=block, depth=2, norm=LayerNorm()),
        init={"*": Normal(std=0.1)},
    )  # fmt: skip
    spec: Any = ours(CASE).spec.replace(family="", architecture="", audio=Tower(model=hears, token=3))
    model = af.build(spec, seed=0).eval()
    randomise(model)
    features, inputs = torch.randn(1, 5, 12, generator=torch.Generator().manual_seed(2)), text()
    frames = model.audio(features, "auto", None).shape[1]
    inputs["input_ids"][1, 2 : 2 + frames] = 3
    both = model(**inputs, input_features=features)
    assert both.audio_hidden_states.shape == (frames, 32) and both.image_hidden_states.shape == (12, 32)
    vectors = model.embedding.tokens(inputs["input_ids"])
    vectors[inputs["input_ids"] == 3] = both.audio_hidden_states
    vectors[inputs["input_ids"] == 4] = both.image_hidden_states
    close(model(inputs_embeds=vectors, attention_mask=inputs["attention_mask"]).logits, both.logits)
    other = model(**inputs, input_features=-features).logits
    assert torch.equal(other[0], both.logits[0]) and not torch.allclose(other[1, 3:], both.logits[1, 3:])
    assert af.count(spec).parameters == sum(p.numel() for p in model.parameters())


def test_a_projector_of_an_earlier_version(tmp_path: Path) -> None:
    """Its tensors had the addresses image.up and image.down."""
    from safetensors.torch import load_file, save_file

    model = ours(CASE)
    af.save(model, tmp_path)
    file = tmp_path / "model.safetensors"
    old = {name.replace(".projector.", "."): tensor for name, tensor in load_file(file).items()}
    assert "image.up.weight" in old
    save_file(old, file, metadata={"format": "pt"})
    close(af.load(tmp_path)(**text()).logits, model(**text()).logits)


class Pairs(Projector, sees="itself"):
    """Joins two neighbouring vectors."""

    def project(self, site: Site, width: int) -> nn.Module:
        return PairsModule(site, width)

    def count(self, vectors: int) -> int:
        return vectors // 2


class PairsModule(nn.Module):
    def __init__(self, site: Site, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(2 * width, site.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.unflatten(1, (-1, 2)).flatten(2))


def test_a_projector_of_another_kind(tmp_path: Path) -> None:
    """A new projector is a new Part: it is built, counted, saved, and may change the number of vectors."""
    spec: Any = af.override(ours(CASE).spec.replace(family="", architecture=""), {"image.projector": Pairs()})
    model = af.build(spec, seed=0).eval()
    inputs = text()
    rows, columns = (inputs["input_ids"] == 4).nonzero(as_tuple=True)
    inputs["input_ids"][rows[::2], columns[::2]] = 7  # half of the places
    out = model(**inputs)
    assert out.image_hidden_states.shape == (6, 32) and Pairs().count(4) == 2
    with pytest.raises(ValueError, match="6 vectors.*12 times"):
        model(**text())
    assert af.count(spec).parameters == sum(p.numel() for p in model.parameters())
    af.save(model, tmp_path)
    close(af.load(tmp_path)(**inputs).logits, out.logits)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"input_ids": torch.full((3, 12), 7)}, "size 3 .*12 vectors.*token 4 0 "),
        ({"pixel_values": torch.zeros(2, 3, 16, 16)}, "size 2 .*8 vectors.*token 4 12 "),
        ({"input_ids": None, "attention_mask": None}, "pixel_values.*input_ids"),
    ],
)
def test_pictures_without_a_place(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ours(CASE)(**{**text(), **change})
