"""MERLOT Reserve: no class is published. Oracles are its loss written out span by span, and plain encoders."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from catalogue import close
from unpublished import clips, description, model

import anyformer as af
from anyformer import families
from anyformer.parts.head.similarity import HiddenSpansHead


def test_the_loss_span_by_span() -> None:
    """-log of the true span's share among spans of its kind, and of the true place's share among places: both ways."""
    made, given = model("reserve"), clips()
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
    made, given = model("reserve"), clips()
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
    made, given = model("reserve"), clips()
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


def test_scores_start_as_those_of_clip() -> None:
    """A temperature of 0.07; the parameter is the logarithm of its inverse."""
    assert HiddenSpansHead(width=4, text=1, audio=2).scale == pytest.approx(-math.log(0.07), abs=1e-4)


def test_vectors_of_spans_are_as_wide_as_said() -> None:
    with pytest.raises(ValueError, match=r"hidden_text\.head.*ProjectionHead"):
        af.override(description("reserve"), {"head.width": 7})
    spec = families.find("bert").read({"num_hidden_layers": 1})
    with pytest.raises(ValueError, match="hidden spans.*HiddenSpansModel"):
        spec.replace(head=description("reserve").head)
