"""DINOv2 in addition to the checks of every family: images of other sizes, masked patches, registers, drop rates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from catalogue import Case, close, every_case, published, shared
from torch import Tensor

import anyformer as af
from anyformer import families
from anyformer.parts.embedding.patches import PatchEmbedding, VideoEmbedding
from anyformer.parts.embedding.prefix import PrefixTokens
from anyformer.parts.position.absolute import Learned, Sinusoidal2D
from anyformer.parts.position.resized import ResizedLearned
from anyformer.specs.part import Site

CASES = [case for case in every_case() if case.id in ("Dinov2Model", "Dinov2WithRegistersModel")]
both = pytest.mark.parametrize("case", CASES, ids=lambda case: case.model_type)


def picture(height: int, width: int) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@both
@pytest.mark.parametrize("size", [(32, 32), (35, 39), (48, 48), (37, 61), (16, 64), (8, 16)], ids=str)
def test_positions_fit_every_image(case: Case, size: tuple[int, int]) -> None:
    """Not a single column: for the memory layout of the published class, torch 2.13 resizes to it wrongly on a CPU."""
    theirs, mine, pixels = published(case)[0], shared(case), picture(*size)
    close(mine(pixels).last_hidden_state, theirs(pixels).last_hidden_state)


@torch.no_grad()
def test_registers_smooth_positions_of_small_images() -> None:
    """The families differ there: only the second one antialiases."""
    tables = []
    for antialias in (False, True):
        position = ResizedLearned(length=16, antialias=antialias)
        module: Any = PatchEmbedding(image_size=(8, 8), patch_size=(2, 2), pad=False, position=position).build(Site(4))
        module.patch.weight.zero_(), module.patch.bias.zero_()
        module.position.weight.copy_(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)))
        tables.append(module({"pixel_values": torch.zeros(1, 3, 4, 4)})[0])
    assert tables[0].shape == (1, 4, 4) and not torch.allclose(*tables)


@torch.no_grad()
@both
def test_masked_patches(case: Case) -> None:
    theirs, mine, pixels = published(case)[0], shared(case), picture(32, 40)
    hidden = torch.rand(2, 20, generator=torch.Generator().manual_seed(2)) < 0.5
    close(mine(pixels, bool_masked_pos=hidden)[0], theirs(pixels, bool_masked_pos=hidden)[0])
    assert not torch.allclose(mine(pixels, bool_masked_pos=hidden)[0], mine(pixels)[0])


@torch.no_grad()
@both
def test_hidden_tokens(case: Case) -> None:
    theirs, mine, pixels = published(case)[0], shared(case), picture(32, 32)
    mask = torch.ones(2, mine.spec.embedding.num_prefix + 16, dtype=torch.long)
    mask[0, -5:] = 0
    one, two = (model(pixels, attention_mask=mask).last_hidden_state for model in (mine, theirs))
    close(one[mask.bool()], two[mask.bool()])


def test_the_drop_rate_is_the_same_in_every_layer() -> None:
    model = af.build(families.find("dinov2").read({**CASES[0].config, "drop_path_rate": 0.3}))
    rates = [1 - float(step.keep_path()[0]) for layer in model.encoder.layers for step in layer.children()]
    assert rates == pytest.approx([0.3] * 6)
    vit = af.override(af.spec("vit-b16"), {"encoder.layers.attention.drop_path": 0.3, "encoder.depth": 3})
    assert [vit.encoder.layer(0).steps["attention"].drop_rate(i, 3) for i in range(3)] == pytest.approx([0, 0.15, 0.3])


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("width", "ratio"), [(24, 4), (22, 3), (20, 1), (36, 5), (28, 2)])
def test_ratios_are_written_as_integers(width: int, ratio: int, gated: bool) -> None:
    family = families.find("dinov2")
    spec = family.read(
        {"hidden_size": width, "num_attention_heads": 2, "mlp_ratio": ratio, "use_swiglu_ffn": gated}, "Dinov2Model"
    )
    config = family.write(spec)
    assert type(config["mlp_ratio"]) is int and family.read(config) == spec


# -- prefix tokens ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_tokens_without_a_position_are_inserted_unchanged() -> None:
    """In any order: rows of the position table belong to the other tokens, in the order of the prefix."""
    prefix = tuple(
        PrefixTokens(count=count, position=position) for count, position in ((1, True), (2, False), (2, True))
    )
    part = PatchEmbedding(
        image_size=(4, 4), patch_size=(2, 2), prefix=prefix, position=Learned(length=4, offset=3), bias=False
    )
    module: Any = part.build(Site(6))
    for tensor in module.parameters():
        tensor.normal_(generator=torch.Generator().manual_seed(tensor.numel()))
    first, registers, last = (each.weight[0] for each in module.prefix)
    table = module.position.weight
    pixels = picture(4, 4)
    x, _ = module({"pixel_values": pixels})
    assert part.num_prefix == 5 and x.shape == (2, part.vectors(0), 6)
    patches = module.patch(pixels).flatten(2).transpose(1, 2) + table[3:]
    assert torch.allclose(x[1], torch.cat((first + table[:1], registers, last + table[1:3], patches[1])))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_number_of_tokens_is_refused_with_what_to_write(count: int) -> None:
    what = rf"write prefix=\(PrefixTokens\(count={max(count, 1)}\),\) or, in JSON, \[.*{max(count, 1)}}}\]; .* \(\) or"
    with pytest.raises(ValueError, match=rf"^PatchEmbedding.prefix: {count} is not a tuple; {what}"):
        PatchEmbedding(image_size=(4, 4), patch_size=(2, 2), prefix=count)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=rf"^embedding.prefix: {count} is not a tuple; {what}"):
        af.override(af.spec("vit-b16"), {"embedding.prefix": count})


@pytest.mark.parametrize(("fields", "line"), [
    ({"prefix": (PrefixTokens(count=2),), "position": Learned(length=4, offset=1)},
     "1 row for 2 prefix tokens with a position; set offset=2 or PrefixTokens"),
    ({"prefix": (PrefixTokens(position=False),), "position": Learned(length=4, offset=1)},
     "1 row for 0 prefix tokens with a position; set offset=0"),
    ({"prefix": (PrefixTokens(),), "position": Sinusoidal2D(rows=2, columns=2)},
     r"0 rows for 1 prefix token with a position; set PrefixTokens\(position=False\)"),
])  # fmt: skip
def test_positions_match_the_prefix(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        PatchEmbedding(image_size=(4, 4), patch_size=(2, 2), **fields)


def test_positions_of_videos_are_not_resized() -> None:
    with pytest.raises(ValueError, match="VideoEmbedding.position: only positions of images"):
        VideoEmbedding(image_size=(4, 4), patch_size=(2, 2), frames=2, position=ResizedLearned(length=8))
