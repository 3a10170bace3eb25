"""SigLIP: texts are filled up to their full length, and every pair of a text and an image has its own loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from catalogue import every_case, spec_of

import anyformer as af
from anyformer import families
from anyformer.objectives.heads import model_inputs
from anyformer.parts.head.sigmoid import SigmoidSimilarityHead
from anyformer.specs.part import Site

CASES = {case.id: case for case in every_case()}


@pytest.mark.parametrize("name", ["SiglipModel-odd", "SiglipTextModel"])
def test_texts_are_filled_up_without_a_mask(name: str) -> None:
    model = af.build(spec_of(CASES[name]), seed=0).eval()
    batch = {"input_ids": torch.tensor([[7, 8, 9], [5, 6, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    inputs = model_inputs(model, batch)
    assert {*inputs} == {"input_ids"}
    assert inputs["input_ids"].shape == (2, 64) and inputs["input_ids"][1, :4].tolist() == [5, 6, 3, 3]
    assert torch.equal(inputs["input_ids"][0, 3:], torch.full((61,), 3))


def test_the_loss_of_every_pair() -> None:
    head = SigmoidSimilarityHead(scale=1.0, bias=-2.0).build(Site(width=4))
    text, image = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).unbind()
    out = head(text, image, {"return_loss": True})
    logits = F.normalize(text) @ F.normalize(image).t() * torch.tensor(1.0).exp() - 2
    expected = F.binary_cross_entropy_with_logits(logits, torch.eye(3), reduction="sum") / 3
    torch.testing.assert_close(out["loss"], expected)
    torch.testing.assert_close(head.probabilities(out["logits_per_image"]), logits.t().sigmoid())


def test_two_towers_need_the_head_of_the_images() -> None:
    config = {"vision_config": {"vision_use_head": False}, "architectures": ["SiglipModel"]}
    with pytest.raises(ValueError, match=r"vision_config\.vision_use_head is false"):
        families.find("siglip").read(config)


def test_towers_of_different_widths_are_refused() -> None:
    config = {"text_config": {"projection_size": 512}, "architectures": ["SiglipModel"]}
    with pytest.raises(ValueError, match=r"width is 768, but the pooled vector has width 512"):
        families.find("siglip").read(config)


def test_more_patches_than_were_trained() -> None:
    transformers = pytest.importorskip("transformers")
    from catalogue import folder

    case = CASES["SiglipVisionModel"]
    pixels = torch.randn(2, 3, 48, 40, generator=torch.Generator().manual_seed(0))
    theirs = transformers.SiglipVisionModel.from_pretrained(folder(case)).eval()
    inputs = {"pixel_values": pixels, "interpolate_pos_encoding": True}
    with torch.no_grad():
        torch.testing.assert_close(
            af.load(folder(case))(**inputs).pooler_output, theirs(**inputs).pooler_output, atol=1e-5, rtol=1e-5
        )
