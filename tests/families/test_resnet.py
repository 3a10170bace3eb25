"""ResNet in addition to the checks of every family: running statistics, any image size, mixed kinds of stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from catalogue import close, every_case, ours, published, shared
from torch import Tensor

import anyformer as af
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.convolution import ConvolutionEmbedding
from anyformer.parts.grid.convolution import Convolution, Convolutions, ResidualDown
from anyformer.parts.grid.windows import Grid
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.pooling import MeanTokens
from anyformer.parts.norm import LayerNorm
from anyformer.specs.part import Site
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.train.average import Average

PLAIN = next(case for case in every_case() if case.id == "ResNetModel")


def picture(height: int, width: int, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(1))


def statistics(model: Any) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if "running" in name or "tracked" in name}


def test_running_statistics_move_as_published(tmp_path: Path) -> None:
    """In training they follow the batches, gradients equal the published ones; then they are saved."""
    model, theirs = ours(PLAIN).train(), type(published(PLAIN)[0]).from_pretrained(published(PLAIN)[1]).train()
    before = {name: value.clone() for name, value in statistics(model).items()}
    for pixels in (picture(32, 32), picture(40, 24) + 1):
        close(model(pixels)[0], theirs(pixels)[0])
    model(picture(32, 32))[0].square().mean().backward()
    theirs(picture(32, 32))[0].square().mean().backward()
    found = {name: value for name, value in model.named_parameters() if name.startswith("embedding")}
    close(found["embedding.layers.0.norm.weight"].grad, theirs.embedder.embedder.normalization.weight.grad)
    close(found["embedding.layers.0.taps.weight"].grad.movedim(-1, 1), theirs.embedder.embedder.convolution.weight.grad)
    moved = statistics(model)
    assert len(moved) == 3 * sum("norm.weight" in name for name in model.state_dict())
    assert all(not torch.equal(value, before[name]) for name, value in moved.items())
    for form in ("anyformer", "hf"):
        af.save(model, tmp_path / form, format=form)
        again = statistics(af.load(tmp_path / form))
        assert all(torch.equal(again[name], value) for name, value in moved.items())
    with torch.no_grad():
        close(af.load(tmp_path / "hf")(picture(32, 32))[0], theirs.eval()(picture(32, 32))[0])


def test_an_average_has_the_statistics_that_go_with_it() -> None:
    model = ours(PLAIN).train()
    average, first = Average(model, 0.5), {name: value.clone() for name, value in statistics(model).items()}
    model(picture(32, 32) + 3)
    average.update(10**6)
    now = {name: value.clone() for name, value in statistics(model).items() if "running" in name}
    with average.swap_in():
        for name, value in now.items():
            close(model.state_dict()[name], (first[name] + value) / 2, 1e-6)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in now.items())


@torch.no_grad()
@pytest.mark.parametrize("size", [(32, 32), (33, 57), (7, 64), (1, 1)], ids=str)
def test_images_of_any_size(size: tuple[int, int]) -> None:
    more: dict[str, Any] = {"output_hidden_states": True}
    theirs, mine = published(PLAIN)[0](picture(*size), **more), shared(PLAIN)(picture(*size), **more)
    close(mine.last_hidden_state, theirs.last_hidden_state)
    close(mine.pooler_output, theirs.pooler_output)
    for a, b in zip(mine.hidden_states, theirs.hidden_states, strict=True):
        close(a, b)


@pytest.mark.parametrize("coarser", [True, False])
@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_where_the_first_stage_halves_the_grid_is_written_back(kind: str, coarser: bool) -> None:
    family = af.families.find("resnet")
    config = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2], "layer_type": kind}
    spec = family.read({**config, "downsample_in_first_stage": coarser})
    written = family.write(spec.replace(source={}))  # from the description only
    assert written["downsample_in_first_stage"] is coarser and written["layer_type"] == kind
    assert list(written["depths"]) == [2, 2]


@pytest.mark.parametrize("pool", [1, 5])
@torch.no_grad()
def test_pools_of_other_sizes(pool: int) -> None:
    """The maximum of each square around every second place, and the resulting grid."""
    part = ConvolutionEmbedding(layers=(Convolution(activation="identity"),), pool=pool, image_size=(9, 7))
    module = part.build(Site(width=6, address="here")).eval()
    torch.nn.init.normal_(module.layers[0].taps.weight)
    before, grid = module.run(picture(9, 7).permute(0, 2, 3, 1).flatten(1, 2), Grid(9, 7))
    square = before.unflatten(1, grid)
    around = torch.nn.functional.pad(square, (0, 0, *(pool // 2,) * 4), value=-torch.inf)
    windows = around.unfold(1, pool, 2).unfold(2, pool, 2)
    found, ctx = module({"pixel_values": picture(9, 7)})
    assert torch.equal(found, windows.amax((-1, -2)).flatten(1, 2))
    assert tuple(part.grid) == (5, 4) and ctx.extras == (part.grid,)


def test_a_convolution_starts_as_published() -> None:
    import transformers

    spec = af.override(af.spec("resnet-18"), {"encoder.stages.1.depth": 1, "encoder.stages.2.depth": 1})
    mine = af.build(spec, seed=0)
    with torch.device("cpu"):
        theirs = transformers.ResNetForImageClassification(
            transformers.ResNetConfig(depths=[2, 2, 2, 1], layer_type="basic", hidden_sizes=[64, 128, 256, 512],
                                      num_labels=1000)
        )  # fmt: skip
    pairs = {
        "embedding.layers.0.taps.weight": "resnet.embedder.embedder.convolution.weight",
        "encoder.down.0.skip.taps.weight": "resnet.encoder.stages.1.layers.0.shortcut.convolution.weight",
        "encoder.stages.0.layers.1.convolutions.op.layers.0.taps.weight":
            "resnet.encoder.stages.0.layers.1.layer.0.convolution.weight",
        "head.out.weight": "classifier.1.weight", "head.out.bias": "classifier.1.bias",
    }  # fmt: skip
    for own, name in pairs.items():
        spread = [float(each.detach().std()) for each in (mine.get_parameter(own), theirs.get_parameter(name))]
        assert spread[0] == pytest.approx(spread[1], rel=0.1), own


def test_a_resnet_before_a_vit() -> None:
    """Two stages of convolutions, then one of attention on their grid: a hybrid."""
    spec = shared(PLAIN).spec
    attention = Sublayer(pre_norm=LayerNorm(), op=Attention(num_heads=4))
    last = Stack(layers=Block(attention=attention), depth=2, norm=LayerNorm())
    hybrid = spec.replace(
        encoder=spec.encoder.replace(stages=(*spec.encoder.stages[:-1], last)),
        head=ClassifyHead(num_labels=3, pool=Pool(take=MeanTokens())), family="", architecture="",
    )  # fmt: skip
    model = af.build(hybrid, seed=0)
    out = model(picture(32, 32), labels=torch.tensor([0, 2]), output_hidden_states=True)
    assert out.logits.shape == (2, 3) and [tuple(each.shape) for each in out.hidden_states] == [
        (2, 8, 8, 8), (2, 16, 8, 8), (2, 32, 4, 4),
    ]  # fmt: skip
    out.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert af.draw(hybrid).svg.count("<svg") == 1 and af.count(hybrid).parameters == sum(
        p.numel() for p in model.parameters()
    )


def test_a_step_before_the_first_stage_is_drawn_where_it_stands() -> None:
    text = af.draw(af.spec("resnet-50")).svg
    shapes = [text.index(f"{grid} × {width}") for grid, width in ((3136, 64), (3136, 256), (784, 512), (49, 2048))]
    assert shapes == sorted(shapes)  # in the order of the stream
    assert text.count("3136 × 64") == text.count("3136 × 256") == 1


def test_clear_errors() -> None:
    read = af.families.find("resnet").read
    for config, match in (
        ({"hidden_sizes": [8, 8], "depths": [1]}, "hidden_sizes.*depths"),
        ({"hidden_sizes": [], "depths": []}, "hidden_sizes.*depths"),
        ({"layer_type": "wide"}, "valid: basic, bottleneck"),
        ({"hidden_sizes": [3], "depths": [1]}, "hidden_sizes: 3"), ({"hidden_act": "rely"}, "'relu'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            read(config)
    with pytest.raises(ValueError, match="3 channels"):
        shared(PLAIN)(picture(32, 32, 4))
    one, two = Convolution(), Convolution(stride=2)
    for make, match in (
        (lambda: Convolution(kernel=2), "odd"), (lambda: Convolutions(layers=(two,)), "ResidualDown"),
        (lambda: Convolutions(layers=(Convolution(width=4),)), "the last layer must be a Convolution without a width"),
        (lambda: Convolutions(layers=()), "the last layer must be a Convolution"),
        (lambda: ResidualDown(width=4, layers=(two,), skip=one), "the stride of all layers, 2"),
        (lambda: ConvolutionEmbedding(layers=(one,), pool=2), "pool is 2; it must be odd"),
        (lambda: af.override(af.spec("gpt2"), {"decoder.layers.attention.op": Convolutions(layers=(one,))}), "future"),
        (lambda: af.override(af.spec("resnet-18"), {"encoder.down": ()}), "encoder: down has 0 steps; 4 stages"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            make()
    other = af.override(af.spec("resnet-18"), {"embedding.pool": None})
    with pytest.raises(ValueError, match=r"resnet .*embedding\.pool.*format='anyformer'"):
        af.families.find("resnet").write(other)
    small = af.override(shared(PLAIN).spec, {"embedding.image_size": (28, 28)})
    assert af.families.find("resnet").write(small)["image_size"] == 28
    assert af.count(small).flops(1) < af.count(shared(PLAIN).spec).flops(1) / 30
