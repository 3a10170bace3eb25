"""Drawings of descriptions: every description draws, no text overlaps, and the picture shows the described model."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from catalogue import every_case, spec_of

import anyformer as af
from anyformer import families
from anyformer.drawing import draw, outline
from anyformer.drawing.compose import draw_outline
from anyformer.drawing.figure import Box, Figure, FigureText, Plus, Polyline, text_lines
from anyformer.drawing.outline import Card, ModelOutline, StreamColumn, cards_in
from anyformer.drawing.svg import MARGIN
from anyformer.drawing.text_width import break_phrase, width, wrap
from anyformer.kernels.capture import graph_capture
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.norm import LayerNorm
from anyformer.parts.residual import Scaled
from anyformer.runtime.inputs import COMMON
from anyformer.specs.part import Site
from anyformer.stacks.block import Parallel
from anyformer.stacks.step_kinds import NormedShortcut
from anyformer.stacks.sublayer import Sublayer
from tiny import model_of

Bounds = tuple[float, float, float, float]
NAMES = [name for name, _ in families.names()]


def meet(a: Bounds, b: Bounds, by: float = 0.5) -> bool:
    return a[0] < b[2] - by and b[0] < a[2] - by and a[1] < b[3] - by and b[1] < a[3] - by


def inside(a: Bounds, b: Bounds, by: float = 0.5) -> bool:
    return a[0] >= b[0] - by and a[1] >= b[1] - by and a[2] <= b[2] + by and a[3] <= b[3] + by


def content(words: FigureText) -> str:
    return "".join(span for span, _ in words.spans)


def faults(figure: Figure) -> Iterator[str]:
    """Yield everything that cannot be read: text outside its box or the picture, or on other text, a box or a line."""
    boxes = [(mark.bounds, mark) for mark in figure.marks if isinstance(mark, Box)]
    words = [(each.bounds, each) for each in text_lines(figure.marks)]
    free = [(mark.bounds, mark) for mark in figure.marks if isinstance(mark, FigureText)]
    whole = (-MARGIN, -MARGIN, figure.width + MARGIN, figure.height + MARGIN)
    for at, box in boxes:
        yield from (f"{content(each)!r} is outside its box" for each in box.words if not inside(each.bounds, at))
    for at, mark in (*boxes, *words):
        if not inside(at, whole):
            yield f"{mark} is outside the picture"
    for (a, one), (b, other) in itertools.combinations(words, 2):
        if meet(a, b):
            yield f"{content(one)!r} on {content(other)!r}"
    leaves = [(at, box) for at, box in boxes if box.kind not in ("frame", "panel") and box.words]
    for (a, one), (b, two) in itertools.combinations(leaves, 2):
        if meet(a, b) and not inside(a, b) and not inside(b, a):
            yield f"boxes {one.tip or one.kind} and {two.tip or two.kind} overlap"
    for (a, each), (b, _) in itertools.product(free, leaves):
        if meet(a, b) and not inside(a, b):
            yield f"{content(each)!r} on a box"
    for line in (mark for mark in figure.marks if isinstance(mark, Polyline)):
        for (ax, ay), (bx, by) in itertools.pairwise(line.points):
            if ax == bx or ay == by:  # horizontal and vertical lines
                bounds = (min(ax, bx) - 1, min(ay, by) - 1, max(ax, bx) + 1, max(ay, by) + 1)
                yield from (f"a line through {content(each)!r}" for at, each in free if meet(at, bounds, 0))


def letters(figure: Figure) -> float:
    """Return the size in pixels of the smallest text if the picture fills a slide of 1920 x 1080."""
    scale = min(1920 / (figure.width + 2 * MARGIN), 1080 / (figure.height + 2 * MARGIN))
    return min(each.size for each in text_lines(figure.marks)) * scale


# -- every description ------------------------------------------------------------------------------------------------


FIRST = [next(iter(family.sizes)) for family in {family.name: family for _, family in families.names()}.values()]


@pytest.mark.parametrize("names", [FIRST, pytest.param(NAMES, marks=pytest.mark.slow)], ids=["one a family", "all"])
def test_every_named_description_draws(names: list[str]) -> None:
    for name in names:
        drawing = draw(name)
        problems = [*faults(drawing.figure)]
        assert not problems, (name, problems[:5])
        assert ElementTree.fromstring(drawing.svg).get("viewBox") and len(drawing.svg) < 60_000
        # pictures with at least three panels side by side, or at least seven folded stacks above each other
        crowded = name.startswith(("switch", "limoe", "vatt", "reserve", "mvitv2-large", "mvitv2-huge"))
        assert letters(drawing.figure) >= (10 if crowded else 13.5), name


def test_every_family_draws() -> None:
    """One tiny case per family, with unusual values."""
    for case in {case.model_type: case for case in every_case()}.values():
        problems = [*faults(draw(spec_of(case)).figure)]
        assert not problems, (case.id, problems[:5])


@pytest.mark.slow
def test_every_case_of_every_family_draws() -> None:
    for case in every_case():
        problems = [*faults(draw(spec_of(case)).figure)]
        assert not problems, (case.id, problems[:5])


def test_how_many_vectors_an_embedding_makes() -> None:
    """The lengths in the picture are the lengths that the embedding's module returns."""
    seen: dict[str, set[int]] = {}
    for case in every_case():
        spec, length = spec_of(case), 1000 if "wav2vec2" in case.model_type else 16
        part, width = spec.embedding, spec.width
        if len(seen.setdefault(type(part).__name__, set())) < 3:
            given = {name: torch.zeros(1, *shape) for name, shape in part.row(length, width).items()}
            kinds = {**COMMON, **part.input_kinds}
            given |= {name: value.long() for name, value in given.items() if kinds.get(name) == "integers"}
            with torch.no_grad(), graph_capture():  # skips the checks of input values, which zeros would fail
                x, _ = part.build(Site(width=width)).eval()(given, None)
            assert part.vectors(length) == x.shape[1], case.id
            seen[type(part).__name__].add(x.shape[1])
    wanted = {"TextEmbedding", "PatchEmbedding", "WaveformEmbedding", "SpectrogramEmbedding", "TrajectoryEmbedding"}
    assert wanted <= {*seen}


# -- content ----------------------------------------------------------------------------------------------------------

SMALL = {"decoder.depth": 3, "width": 24, "decoder.layers.attention.op.num_heads": 3,
         "decoder.layers.attention.op.head_width": 8}  # fmt: skip


def gpt2(**changes: Any) -> Any:
    others = {path.replace("__", "."): value for path, value in changes.items()}
    return af.override(af.spec("gpt2"), {**SMALL, **others})


def heights(figure: Figure, step: str) -> list[str]:
    """Return the boxes and sums of one step, from bottom to top."""
    at = f"decoder.layers.0.{step}."
    step_boxes = [mark for mark in figure.marks if isinstance(mark, Box) and mark.tip.startswith(at)]
    boxes = [(box.y, box.tip.removeprefix(at)) for box in step_boxes]
    ends = [min(boxes)[0] - 60, max(box.y + box.height for box in step_boxes)]
    sums = [(mark.y, "+") for mark in figure.marks if isinstance(mark, Plus) and ends[0] < mark.y < ends[1]]
    return [name for _, name in sorted([*boxes, *sums], reverse=True)]


@pytest.mark.parametrize(("fields", "order"), [
    ({"pre_norm": LayerNorm()}, ["pre_norm", "op", "+"]),
    ({"out_norm": LayerNorm()}, ["op", "+", "out_norm"]),
    ({"pre_norm": LayerNorm(), "post_norm": LayerNorm()}, ["pre_norm", "op", "post_norm", "+"]),
    ({"kind": NormedShortcut, "pre_norm": LayerNorm()}, ["pre_norm", "op", "+"]),
    ({}, ["op", "+"]),
], ids=["pre", "post", "sandwich", "normed skip", "none"])  # fmt: skip
def test_norms_stand_where_they_are_applied(fields: dict[str, Any], order: list[str]) -> None:
    kind = fields.pop("kind", Sublayer)
    figure = draw(gpt2(decoder__layers__feedforward=kind(op=MLP(width=48), **fields))).figure
    assert heights(figure, "feedforward") == order and not [*faults(figure)]
    # the skip connection starts directly below the first box that it skips
    skips = [mark.points for mark in figure.marks if isinstance(mark, Polyline) and mark.kind == "skip"]
    boxes = {mark.tip: mark for mark in figure.marks if isinstance(mark, Box)}
    first = "op" if kind is NormedShortcut or "pre_norm" not in fields else "pre_norm"
    passed = boxes[f"decoder.layers.0.feedforward.{first}"]
    start = min((points[0][1] for points in skips if points[0][1] > passed.y), default=0)
    assert 0 < start - (passed.y + passed.height) < 30
    if kind is NormedShortcut:
        assert start < boxes["decoder.layers.0.feedforward.pre_norm"].y


def test_a_residual_that_is_no_plain_sum_is_told() -> None:
    spec = gpt2(decoder__layers__feedforward__residual=Scaled(branch=0.5))
    assert "Scaled (half-step)" in [content(each) for each in text_lines(draw(spec).figure.marks)]


def test_steps_side_by_side() -> None:
    figure = draw("pythia-70m").figure
    boxes = {mark.tip.rpartition("both.")[2]: mark for mark in figure.marks if isinstance(mark, Box)}
    assert boxes["attention.op"].x + boxes["attention.op"].width < boxes["feedforward.op"].x
    assert isinstance(dict(af.spec("pythia-70m").decoder.layers.items())["both"], Parallel)
    assert sum(isinstance(mark, Plus) for mark in figure.marks) == 1


def texts(drawn: Any) -> dict[str, Card]:
    return {card.address: card for card in cards_in(outline(drawn))}


def test_parameters_and_shapes() -> None:
    """The numbers follow from the published sizes of GPT-2: 768 x 3072 x 2 with biases, twelve heads of 64."""
    cards = texts("gpt2")
    assert cards["decoder.layers.0.attention.op"].phrases == ("12 heads × 64", "Causal mask")
    assert cards["decoder.layers.0.feedforward.op"].note == "4.7M" == f"{(2 * 768 * 3072 + 768 + 3072) / 1e6:.1f}M"
    assert cards["embedding.position"].note == f"{1024 * 768 / 1e3:.1f}K" and cards["embedding"].note == "38.6M"
    assert cards["head"].phrases == ("vocab size 50,257", "tied to embedding.tokens") and cards["head"].note == ""
    shown = [content(each) for each in text_lines(draw("gpt2").figure.marks)]
    assert "× 12" in shown and shown.count("T × 768") == 2 and "T × 50,257" in shown
    assert "GPT2LMHeadModel · 12 layers · width 768 · 124.4M parameters" in shown


def test_lengths_that_the_input_decides() -> None:
    swin = [content(each) for each in text_lines(draw("swin-tiny").figure.marks)]
    assert [each for each in swin if each in ("3136 × 96", "784 × 192", "196 × 384", "49 × 768")][:1] == ["3136 × 96"]
    assert {"784 × 192", "196 × 384", "49 × 768", "3 × 224 × 224"} <= {*swin}
    assert "197 × 768" in [content(each) for each in text_lines(draw("vit-b16").figure.marks)]
    assert "1500 × 384" in [content(each) for each in text_lines(draw("whisper-tiny").figure.marks)]
    assert "T/320 × 768" in [content(each) for each in text_lines(draw("wav2vec2-base").figure.marks)]
    assert "3 T × 128" in [content(each) for each in text_lines(draw("decision-transformer-gym").figure.marks)]


def test_kinds_of_layers_and_their_order() -> None:
    figure = draw("deepseek-v3").figure
    cells = sorted((-mark.y, mark.kind) for mark in figure.marks if isinstance(mark, Box) and mark.height < 14.5
                   and mark.kind.startswith("kind"))  # fmt: skip
    assert [kind for _, kind in cells] == ["kind0"] * 3 + ["kind1"] * 58
    shown = [content(each) for each in text_lines(figure.marks)]
    assert {"dense", "sparse", "layers 0–2", "layers 3–60", "× 61"} <= {*shown}
    cards = texts("deepseek-v3")
    assert cards["decoder.layers.3.feedforward.op"].differs and not cards["decoder.layers.3.attention.op"].differing


def test_experts() -> None:
    card = texts("mixtral-8x7b")["decoder.layers.0.feedforward.op"]
    assert card.phrases[0] == "8 experts, 2 active" and "176.2M" in card.phrases[1]
    figure = draw("mixtral-8x7b").figure
    experts = [mark for mark in figure.marks if isinstance(mark, Box) and mark.kind.startswith("expert ")]
    assert len([mark for mark in figure.marks if isinstance(mark, Box) and mark.kind.split()[0] == "expert"]) == 8
    assert len(experts) == 2
    assert "46.7B parameters, 12.9B active" in draw("mixtral-8x7b").svg


def test_the_decoder_looks_at_the_encoder() -> None:
    for name in ("t5-small", "switch-base-8"):
        figure = draw(name).figure
        crosses = [mark for mark in figure.marks if isinstance(mark, Box) and mark.kind.split()[0] == "cross"]
        ends = [mark.points[-1] for mark in figure.marks if isinstance(mark, Polyline) and mark.kind == "memory"]
        assert len(crosses) == len(ends) == (2 if name.startswith("switch") else 1)
        for cross, (x, y) in zip(sorted(crosses, key=lambda box: box.x), sorted(ends), strict=True):
            assert math.isclose(x, cross.x) and cross.y < y < cross.y + cross.height


def test_tied_weights() -> None:
    ties = [mark for mark in draw("gpt2").figure.marks if isinstance(mark, Polyline) and mark.kind == "tie"]
    assert len(ties) == 1 and not [m for m in draw("llama3-8b").figure.marks if getattr(m, "kind", "") == "tie"]


def test_a_shared_layer_and_a_shared_bias() -> None:
    shown = [content(each) for each in text_lines(draw("albert-base").figure.marks)]
    assert shown[shown.index("× 12") + 1 :][:3] == ["encoder layers", "share 7.1M", "of 1 layer"]
    cards = texts("t5-small")
    assert cards["encoder.position"].phrases[0] == "shared by all layers"
    assert "with Bucketed Bias" in cards["encoder.layers.0.attention.op"].phrases


def test_an_embedding_is_drawn_in_its_order() -> None:
    """ALBERT projects its narrow vectors after positions and norm, OPT before positions are added."""
    albert, opt = ([item for item in outline(name).columns[0].items if not isinstance(item, str)][1:5]
                   for name in ("albert-base", "opt-350m"))  # fmt: skip
    addresses = [getattr(item, "card", item).address for item in albert]
    assert addresses == ["embedding", "embedding.position", "embedding.norm", "embedding.project"]
    assert [row.title for row in opt[0].rows] == ["Tokens", "project"]


def test_kinds_are_compared_by_the_place_of_their_steps() -> None:
    """Steps are compared by index: the same norm in a step with a different name is not marked."""
    spec, mamba = gpt2(), af.spec("mamba-130m").decoder.layers
    norm = dict(spec.decoder.layers.items())["attention"].pre_norm
    kinds = {"a": spec.decoder.layers, "b": mamba.edit(("mixer", "pre_norm"), lambda _: norm)}
    cards = texts(spec.replace(decoder=spec.decoder.replace(layers=kinds, pattern=("a", "b"))))
    assert not cards["decoder.layers.1.mixer.pre_norm"].differing and cards["decoder.layers.1.mixer.op"].differs


def test_no_family_has_code_here() -> None:
    """The picture depends only on the Parts: without the family's name it is the same."""
    for name in ("t5-small", "swin-tiny"):
        spec = af.spec(name)
        one = draw(spec.replace(architecture="A"), titles=["x"]).figure
        other = draw(spec.replace(family="", architecture="A"), titles=["x"]).figure
        assert one == other


def test_towers() -> None:
    """Two embeddings with one head: two columns, and one card above both."""
    card = Card("a", "embedding", "Text Embedding")
    columns = (StreamColumn((card, "T × 8")), StreamColumn((card, "N × 8")))
    towers = ModelOutline("two", "towers", columns, (Card("h", "head", "Contrast"),))
    figure = draw_outline(towers)
    boxes = sorted((mark for mark in figure.marks if isinstance(mark, Box)), key=lambda box: box.y)
    assert boxes[0].tip == "h" and boxes[1].x != boxes[2].x and not [*faults(figure)]


# -- two models -------------------------------------------------------------------------------------------------------


def test_two_side_by_side() -> None:
    drawing = draw("gpt2", "llama3-8b")
    lines = text_lines(drawing.figure.marks)
    marked = {content(each) for each in lines if any(kind == "differs" for _, kind in each.spans)}
    assert {"LayerNorm", "RMSNorm", "MLP (FFN)", "Gated MLP (SwiGLU)", "Attention (GQA)", "vocab size 50,257"} <= marked
    assert "LM Head" not in marked and not [*faults(drawing.figure)] and drawing.title == "gpt2 and llama3-8b"
    unlike = [mark.tip for mark in drawing.figure.marks if isinstance(mark, Box) and "changed" in mark.kind]
    assert {"embedding.position", "embedding"} <= {*unlike}  # GPT-2 has positions and segments
    sizes = draw("llama3.2-1b", "llama3-8b").figure.marks
    unlike = [mark.tip for mark in sizes if isinstance(mark, Box) and "changed" in mark.kind]
    assert "embedding" not in unlike, "different numbers do not mark a box"


def test_what_is_the_same_is_not_marked() -> None:
    drawing = draw("bert-base", "bert-base")
    words = text_lines(drawing.figure.marks)
    assert [content(w) for w in words if any(kind == "differs" for _, kind in w.spans)] == [
        content(words[-1])
    ]  # the legend
    assert not [mark for mark in drawing.figure.marks if isinstance(mark, Box) and "changed" in mark.kind]


# -- text -------------------------------------------------------------------------------------------------------------


def test_widths_are_no_less_than_those_of_a_wide_font() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib.ft2font import FT2Font, LoadFlags

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    shown = {content(each) for name in ("gpt2", "deepseek-v3", "swin-tiny", "t5-small") for each in
             text_lines(draw(name).figure.marks)}  # fmt: skip
    for file, bold in (("DejaVuSans.ttf", False), ("DejaVuSans-Bold.ttf", True)):
        font = FT2Font(str(folder / file))
        font.set_size(100, 72)
        glyphs = {c: font.load_char(ord(c), flags=LoadFlags.NO_HINTING) for c in {*"".join(shown)}}
        advance = {letter: glyph.linearHoriAdvance / 65536 for letter, glyph in glyphs.items()}
        for text in shown:
            assert sum(advance[letter] for letter in text) <= width(text, 100, bold), text
            if not bold:
                assert width(text, 100) < 1.25 * sum(advance[letter] for letter in text) + 5, "the bound is too loose"


def test_lines_are_broken_where_they_must_be() -> None:
    assert break_phrase("as it is", 1000, 15) == ["as it is"]
    assert all(width(piece, 15) <= 60 for piece in break_phrase("words and averyveryverylongone", 60, 15))
    assert "".join(break_phrase("averyveryverylongone", 60, 15)) == "averyveryverylongone"
    lines = wrap(["12 heads × 64", "Causal mask", "no bias"], 190, 15)
    assert lines == [["12 heads × 64"], ["Causal mask", "no bias"]]
    assert break_phrase("", 10, 15) == [""] and break_phrase("x", 0, 15) == ["x"]


def test_text_of_other_people_is_shown_and_not_run() -> None:
    spec = gpt2()
    kinds = {"<script>alert(1)</script>": spec.decoder.layers, "b": spec.decoder.layers}
    spec = spec.replace(decoder=spec.decoder.replace(layers=kinds, pattern=tuple(kinds)), architecture="</svg><b>&")
    drawing = draw(spec)
    assert "<script" not in drawing.html and "<b>" not in drawing.html and "&lt;script&gt;" in drawing.svg
    ElementTree.fromstring(drawing.svg)
    assert not [*faults(drawing.figure)]


# -- themes, notebooks, mistakes --------------------------------------------------------------------------------------


def test_themes() -> None:
    auto, light, dark = (draw(gpt2(), theme=theme).svg for theme in ("auto", "light", "dark"))
    assert "prefers-color-scheme:dark" in auto and "prefers-color-scheme" not in light + dark
    assert "fill:#ffffff" in light and "fill:#ffffff" not in dark and "#14181f" in dark
    assert "http" not in auto.replace("http://www.w3.org/2000/svg", "") and "@font-face" not in auto


def test_a_notebook_shows_the_picture_and_print_the_text() -> None:
    spec, model = gpt2(), model_of("gpt2")
    page = spec._repr_html_()
    assert page.startswith("<svg") and "DecoderModel(width=24" in page
    assert str(spec).startswith("DecoderModel(width=24") and "svg" not in repr(spec) + str(spec) + repr(model)
    assert model._repr_html_().startswith("<svg") and draw(model).svg == draw(model.spec)._repr_svg_()


def test_a_notebook_shows_the_text_of_what_cannot_be_built() -> None:
    spec = af.spec("gpt2")
    op = "decoder.layers.attention.op"
    odd = af.override(spec, {f"{op}.num_heads": 7, f"{op}.head_width": None})
    with pytest.raises(ValueError, match="not a multiple of 7 heads"):
        draw(odd)
    assert odd._repr_html_().startswith("<pre>")


@pytest.mark.parametrize(("models", "options", "line"), [
    (("gtp2",), {}, "did you mean 'gpt2'?"),
    ((3,), {}, "cannot draw .* int; give a description, a model"),
    ((), {}, "draw takes one or two models, not 0"),
    (("gpt2", "gpt2", "gpt2"), {}, "not 3"),
    (("gpt2",), {"theme": "drak"}, "did you mean 'dark'?"),
], ids=["name", "kind", "none", "three", "theme"])  # fmt: skip
def test_mistakes(models: tuple[Any, ...], options: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line.replace("?", r"\?")):
        draw(*models, **options)


def test_the_same_every_time() -> None:
    assert draw("swin-tiny").svg == draw("swin-tiny").svg
    assert dataclasses.replace(draw("gpt2"), theme="dark").svg == draw("gpt2", theme="dark").svg
