"""VATT: no class is published. Oracles are its losses written out, a Vision Transformer's patches and plain sums."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from catalogue import close
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from unpublished import description, model, videos

import anyformer as af
from anyformer.parts.embedding.drop_token import drop_tokens
from anyformer.parts.head.similarity import nearest_of_several
from anyformer.runtime.context import Context


def test_one_stack_for_all() -> None:
    made = model("vatt")
    stacks = [dict(getattr(made, name).encoder.named_parameters()) for name in ("text", "video", "audio")]
    assert all(stacks[0][name] is other[name] for other in stacks[1:] for name in stacks[0])
    assert af.count(made.spec).parameters == sum(p.numel() for p in made.parameters())
    parts = af.count(af.spec("vatt-ma-medium")).parts
    # 12 layers of 4 D^2 + 2 D F products, with biases and norms: 151 million, counted once
    layer = 4 * (1024**2 + 1024) + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024
    assert sum(size for name, size in parts.items() if ".encoder." in name) == 12 * layer + 2 * 1024


@pytest.mark.parametrize("candidates", [1, 3])
def test_mil_nce_pair_by_pair(candidates: int) -> None:
    """-log of the share of a clip's own pairs in all pairs with the clip or one of its candidates, in plain sums."""
    scores = torch.randn(4, 4 * candidates, generator=torch.Generator().manual_seed(candidates)) * 3
    found = nearest_of_several(scores)
    for i in range(4):
        own = range(i * candidates, (i + 1) * candidates)
        right = sum(math.exp(scores[i, k]) for k in own)
        wrong = sum(math.exp(scores[i, k]) for k in range(4 * candidates) if k not in own)
        wrong += sum(math.exp(scores[j, k]) for j in range(4) if j != i for k in own)
        assert float(found[i]) == pytest.approx(-math.log(right / (right + wrong)), abs=1e-5)
    with pytest.raises(ValueError, match="video.* 5 .*4"):
        nearest_of_several(torch.zeros(4, 5))


def test_spaces_and_their_losses() -> None:
    made, given = model("vatt", text_weight=0.5, temperature=0.3), videos()
    out = made(**given, return_loss=True)
    with torch.no_grad():
        video, audio = (getattr(made, n)(**{k: given[k]})[f"{n}_embeds"] for n, k in
                        (("video", "pixel_values"), ("audio", "input_values")))  # fmt: skip
        text = made.text(input_ids=given["input_ids"]).text_embeds
    x = made.video(pixel_values=given["pixel_values"]).last_hidden_state.mean(1)
    deep = made.video.head.project(F.relu(made.video.head.pool.dense(x)))
    close(video, deep)
    cosine = torch.nn.functional.cosine_similarity
    for i in range(3):
        for j in range(3):
            close(out.video_audio_logits[i, j], cosine(video[i], audio[j], dim=0) / 0.3)
        for j in range(6):
            there = made.head.project(video[i])
            close(out.video_text_logits[i, j], cosine(there, text[j], dim=0) / 0.3)
    parts = [nearest_of_several(out[f"video_{name}_logits"]).mean() for name in ("audio", "text")]
    close(out.loss, parts[0] + 0.5 * parts[1])
    silent = made(**{name: value for name, value in given.items() if name != "input_values"}, return_loss=True)
    close(silent.loss, 0.5 * parts[1])


def test_segments_are_projected_one_by_one() -> None:
    made, given = model("vatt"), videos()
    x = made.audio.embedding({"input_values": given["input_values"]})[0]
    project, position = made.audio.embedding.project, made.audio.embedding.position.weight
    for i in range(7):
        close(x[:, i], given["input_values"][:, 10 * i : 10 * i + 10] @ project.weight.t() + project.bias + position[i])


def test_droptoken() -> None:
    """Half of the tokens, drawn per row, in order and with unchanged vectors; only in training."""
    made, given = model("vatt"), {"input_values": videos(8)["input_values"]}
    embedding = made.audio.embedding
    whole, ctx = embedding(given)
    embedding.train()
    torch.manual_seed(0)
    x, kept = embedding(given)
    assert x.shape == (8, 4, 24) and kept.positions.shape == (8, 4)  # round(7 * 0.5)
    assert (kept.positions.diff(dim=-1) > 0).all() and len({tuple(row.tolist()) for row in kept.positions}) > 3
    close(x, whole.take_along_dim(kept.positions[..., None], 1))
    assert made.video.eval()(pixel_values=videos()["pixel_values"]).last_hidden_state.shape[1] == 8
    assert made.video.train()(pixel_values=videos()["pixel_values"]).last_hidden_state.shape[1] == 4
    real = torch.arange(10) < torch.tensor([[3], [9]])  # padding is dropped first
    rows = torch.arange(20.0).view(2, 10, 1)
    padded = Context(index=torch.arange(10), positions=torch.arange(10)[None], is_token=real)
    for _ in range(5):
        y, after = drop_tokens(rows, padded, 0.6)
        assert after.is_token.sum(-1).tolist() == [3, 4] and set(y[0, after.is_token[0], 0].tolist()) == {0.0, 1.0, 2.0}


@pytest.mark.parametrize("where", ["left", "right"])
def test_n3_n4_neither_pads_nor_other_rows_change_a_clip(where: str) -> None:
    made, given = model("vatt"), videos(candidates=1)
    ids, sound = given["input_ids"], given["input_values"]
    words, samples = ((9, 0), (30, 0)) if where == "left" else ((0, 9), (0, 30))
    padded = {
        **given, "input_ids": F.pad(ids, words), "attention_mask": F.pad(torch.ones_like(ids), words),
        "input_values": F.pad(sound, samples, value=5.0),
        "audio_attention_mask": F.pad(torch.ones_like(sound).long(), samples),
    }  # fmt: skip
    with torch.no_grad():
        plain = made(**given)
        for made.kernel in ("eager", "sdpa"):
            found = made(**padded)
            for name in ("video_audio_logits", "video_text_logits"):
                close(found[name], plain[name])
        for i in range(3):
            alone = made(**{name: value[i : i + 1] for name, value in given.items()})
            for name in ("text", "video", "audio"):
                close(alone[f"{name}_embeds"], plain[f"{name}_embeds"][i : i + 1])


def test_counted_and_drawn() -> None:
    made = model("vatt")
    given = {**videos(1, 1), "input_values": torch.zeros(1, 120), "input_ids": torch.zeros(1, 20).long()}
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        made(**given)
    assert af.count(made.spec).flops(20) == counter.get_total_flops()
    assert "tied to text.encoder" in af.draw(made.spec).svg


def test_spaces_are_as_wide_as_said() -> None:
    with pytest.raises(ValueError, match=r"text\.head\.width.* 9.*head\.width.* 7"):
        af.override(description("vatt"), {"head.width": 7})
    with pytest.raises(ValueError, match=r"audio\.encoder.*text\.encoder"):
        af.override(description("vatt"), {"audio.encoder.depth": 3})
