"""MERLOT Reserve: no class is published. Oracles are its loss written out span by span, and plain encoders."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from catalogue import close, holds, randomise
from torch import Tensor

import anyformer as af
from anyformer import families
from anyformer.evaluate import invariants
from anyformer.evaluate.invariants import EXACT
from anyformer.parts.head.similarity import HiddenSpansHead

SMALL = {
    "hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 40, "num_hidden_layers": 2, "num_image_layers": 1,
    "num_audio_layers": 1, "num_span_layers": 1, "vocab_size": 60, "projection_dim": 10, "max_position_embeddings": 64,
    "image_size": 8, "patch_size": 4, "segment_size": 10, "num_segments": 3,
}  # fmt: skip


def description(**more: Any) -> Any:
    return families.find("reserve").read({**SMALL, **more})


def model(**more: Any) -> Any:
    made = af.build(description(**more), seed=0).eval()
    randomise(made)
    return made


def clips() -> dict[str, Tensor]:
    """Two clips: a frame, words, a sound and a masked text; a frame, a masked sound, words, two masked texts."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    words = torch.randint(10, 60, (20,), generator=generator).tolist()
    rows = [[4] * 4 + words[:4] + [5] * 3 + [6], [4] * 4 + [7] + words[4:9] + [6, 6]]
    hidden = torch.tensor([[11, 12, 13], [14, 15, 0], [16, 0, 0]])
    return {
        "input_ids": torch.tensor(rows), "pixel_values": noise(2, 3, 8, 8), "input_values": noise(1, 30),
        "hidden_ids": hidden, "hidden_mask": (hidden > 0).long(), "hidden_values": noise(1, 30),
    }  # fmt: skip


def test_the_loss_span_by_span() -> None:
    """-log of the true span's share among spans of its kind, and of the true place's share among places: both ways."""
    made, given = model(), clips()
    with torch.no_grad():
        out = made(**given, return_loss=True)
        assert out.text_span_logits.shape == (3, 3) and out.audio_span_logits.shape == (1, 1)
        x, factor = out.last_hidden_state, math.exp(float(made.head.compare.scale))
        places = [(0, 11), (1, 10), (1, 11)]
        guesses = [made.head.project(x[row, column]) for row, column in places]
        spans = [made.hidden_text(input_ids=ids[None, :n]).text_embeds[0]
                 for ids, n in zip(given["hidden_ids"], (3, 2, 1), strict=True)]  # fmt: skip
        scores = [[factor * float(F.cosine_similarity(a, b, dim=0)) for b in spans] for a in guesses]
        close(out.text_span_logits, torch.tensor(scores))
        text = 0.0
        for i in range(3):
            row, column = scores[i], [scores[j][i] for j in range(3)]
            text += sum(math.log(sum(map(math.exp, each))) - each[i] for each in (row, column)) / 2 / 3
        assert float(out.loss) == pytest.approx(text, abs=1e-4)  # a single sound has no alternative


def test_what_was_hidden_is_read_by_the_small_encoders_alone() -> None:
    made, given = model(), clips()
    with torch.no_grad():
        out = made(**given)
        other = made(**{**given, "hidden_ids": given["hidden_ids"] + 1})
        assert torch.equal(other.last_hidden_state, out.last_hidden_state)
        assert not torch.allclose(other.text_span_logits, out.text_span_logits)
        plain = made(**{name: value for name, value in given.items() if not name.startswith("hidden")})
        assert torch.equal(plain.last_hidden_state, out.last_hidden_state) and "text_span_logits" not in plain
        seen = made(**{**given, "pixel_values": -given["pixel_values"]})
        assert not torch.allclose(seen.text_span_logits, out.text_span_logits)


@pytest.mark.parametrize("where", ["left", "right"])
def test_n3_n4_neither_pads_nor_other_rows_change_a_clip(where: str) -> None:
    made, given = model(), clips()
    ids, widths = given["input_ids"], (9, 0) if where == "left" else (0, 9)
    padded = {**given, "input_ids": F.pad(ids, widths), "attention_mask": F.pad(torch.ones_like(ids), widths)}
    cut = slice(9, None) if where == "left" else slice(0, 12)
    with torch.no_grad():
        plain = made(**given)
        for made.kernel in ("eager", "sdpa"):
            found = made(**padded)
            close(found.last_hidden_state[:, cut], plain.last_hidden_state)
            close(found.text_span_logits, plain.text_span_logits)
        second = {"input_ids": ids[1:], "pixel_values": given["pixel_values"][1:],
                  "hidden_ids": given["hidden_ids"][1:], "hidden_mask": given["hidden_mask"][1:]}  # fmt: skip
        alone = made(**second)
        close(alone.last_hidden_state, plain.last_hidden_state[1:])
        close(alone.text_span_logits, plain.text_span_logits[1:, 1:])


def test_n8_gradients_and_recomputation() -> None:
    given = clips()
    given["hidden_values"] = torch.randn(2, 30, generator=torch.Generator().manual_seed(3))
    given["input_ids"][1, 7] = 7
    holds(invariants.check_gradients, model(), {**given, "return_loss": True}, EXACT)


@pytest.mark.slow
def test_n9_compiled() -> None:
    made, given = model(num_hidden_layers=1), clips()
    torch._dynamo.reset()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager", dynamic=False)
    with torch.no_grad():
        close(compiled(**given).text_span_logits, made(**given).text_span_logits)


def test_saved_counted_traced_and_drawn(tmp_path) -> None:
    made, given = model(), clips()
    af.save(made, tmp_path / "m")
    again = af.load(tmp_path / "m")
    assert again.spec.replace(source={}) == made.spec.replace(source={})
    assert again.hidden_text.embedding.tokens.weight is again.embedding.tokens.weight
    with torch.no_grad():
        plain = made(**given)
        assert torch.equal(again(**given).text_span_logits, plain.text_span_logits)
        keep = ["encoder.layers.1.attention.op.weights", "hidden_text.encoder.layers.0", "audio.model.encoder.layers.0"]
        run = af.trace(made, keep=keep, **given)
        assert torch.equal(run.output.text_span_logits, plain.text_span_logits)
        assert run["hidden_text.encoder.layers.0"].shape == (3, 3, 24)
        change = {"hidden_text.encoder.layers.0": lambda x, at: x.flip(-1)}
        changed = af.trace(made, change=change, **given).output
        assert torch.equal(changed.last_hidden_state, plain.last_hidden_state)
        assert not torch.allclose(changed.text_span_logits, plain.text_span_logits)
    count = af.count(made.spec)
    assert count.parameters == sum(p.numel() for p in made.parameters()) and count.flops(30) > 0
    assert "hidden" in af.draw(made.spec).svg
    with pytest.raises(ValueError, match="format='anyformer'"):
        af.save(made, tmp_path / "hf", format="hf")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_ids": torch.ones(2, 3).long(), "hidden_mask": None}, "2 spans.*text"),
        ({"hidden_values": torch.zeros(2, 30)}, "2 spans.*audio.* 1 .*7"),
        ({"pixel_values": torch.zeros(1, 3, 8, 8)}, "size 1 .*4 vectors.*token 4 8 "),
        ({"hidden_ids": torch.ones(3, 3)}, "hidden_ids.*integers"),
    ],
)
def test_what_has_no_place(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        model()(**{**clips(), **change})


@pytest.mark.parametrize(
    ("config", "what"),
    [({"num_attention_heads": 5}, "multiple of num_attention_heads"),
     ({"text_mask_index": 7}, "text.*audio.* 7"),
     ({"text_mask_index": 4}, " 4"), ({"audio_mask_index": 60}, " 60"),
     ({"audio_token_index": 4}, r"image\.token.*audio_token_index.* 4")],
)  # fmt: skip
def test_refused(config: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        description(**config)


def test_scores_start_as_those_of_clip() -> None:
    """A temperature of 0.07; the parameter is the logarithm of its inverse."""
    assert HiddenSpansHead(width=4, text=1, audio=2).scale == pytest.approx(-math.log(0.07), abs=1e-4)


def test_vectors_of_spans_are_as_wide_as_said() -> None:
    with pytest.raises(ValueError, match=r"hidden_text\.head.*ProjectionHead"):
        af.override(description(), {"head.width": 7})
    spec = families.find("bert").read({"num_hidden_layers": 1})
    with pytest.raises(ValueError, match="hidden spans.*HiddenSpansModel"):
        spec.replace(head=description().head)


def test_every_field_shapes_the_description() -> None:
    family = families.find("reserve")
    other = {"hidden_act": "relu", "num_attention_heads": 6}
    for name, field in family.fields.items():
        value = other.get(name, field.default * 2 if "index" not in name else field.default + 20)
        spec = family.read({name: value})
        assert spec.replace(source={}) != family.read({}).replace(source={}), name
        assert field.recover(spec) == value, name
