"""VATT: no class is published. Oracles are its losses written out, a Vision Transformer's patches and plain sums."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from catalogue import close, holds, randomise
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import anyformer as af
from anyformer import families
from anyformer.evaluate import invariants
from anyformer.evaluate.invariants import EXACT
from anyformer.parts.embedding.drop_token import drop_tokens
from anyformer.parts.head.similarity import nearest_of_several
from anyformer.runtime.context import Context

SMALL = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40, "vocab_size": 60,
    "max_position_embeddings": 24, "num_frames": 4, "frame_step": 2, "image_size": 8, "patch_size": 4,
    "segment_size": 10, "num_segments": 12, "audio_space": 14, "text_space": 9,
}  # fmt: skip


def description(**more: Any) -> Any:
    return families.find("vatt").read({**SMALL, **more})


def model(**more: Any) -> Any:
    made = af.build(description(**more), seed=0).eval()
    randomise(made)
    return made


def clips(batch: int = 3, candidates: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(5, 60, (batch * candidates, 6), generator=generator)
    pixels = torch.randn(batch, 3, 4, 8, 8, generator=generator)
    return {"input_ids": ids, "pixel_values": pixels, "input_values": torch.randn(batch, 70, generator=generator)}


def test_one_stack_for_all() -> None:
    made = model()
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
    made, given = model(text_weight=0.5, temperature=0.3), clips()
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
    made, given = model(), clips()
    x = made.audio.embedding({"input_values": given["input_values"]})[0]
    project, position = made.audio.embedding.project, made.audio.embedding.position.weight
    for i in range(7):
        close(x[:, i], given["input_values"][:, 10 * i : 10 * i + 10] @ project.weight.t() + project.bias + position[i])


def test_droptoken() -> None:
    """Half of the tokens, drawn per row, in order and with unchanged vectors; only in training."""
    made, given = model(), {"input_values": clips(8)["input_values"]}
    embedding = made.audio.embedding
    whole, ctx = embedding(given)
    embedding.train()
    torch.manual_seed(0)
    x, kept = embedding(given)
    assert x.shape == (8, 4, 24) and kept.positions.shape == (8, 4)  # round(7 * 0.5)
    assert (kept.positions.diff(dim=-1) > 0).all() and len({tuple(row.tolist()) for row in kept.positions}) > 3
    close(x, whole.take_along_dim(kept.positions[..., None], 1))
    assert made.video.eval()(pixel_values=clips()["pixel_values"]).last_hidden_state.shape[1] == 8
    assert made.video.train()(pixel_values=clips()["pixel_values"]).last_hidden_state.shape[1] == 4
    real = torch.arange(10) < torch.tensor([[3], [9]])  # padding is dropped first
    rows = torch.arange(20.0).view(2, 10, 1)
    padded = Context(index=torch.arange(10), positions=torch.arange(10)[None], is_token=real)
    for _ in range(5):
        y, after = drop_tokens(rows, padded, 0.6)
        assert after.is_token.sum(-1).tolist() == [3, 4] and set(y[0, after.is_token[0], 0].tolist()) == {0.0, 1.0, 2.0}


@pytest.mark.parametrize("where", ["left", "right"])
def test_n3_n4_neither_pads_nor_other_rows_change_a_clip(where: str) -> None:
    made, given = model(), clips(candidates=1)
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


def test_n8_gradients_and_recomputation() -> None:
    holds(invariants.check_gradients, model(), {**clips(), "return_loss": True}, EXACT)


@pytest.mark.slow
def test_n9_compiled_and_half_precision() -> None:
    made, given = model(num_hidden_layers=1), clips(candidates=1)
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(made, fullgraph=True, backend="aot_eager", dynamic=False)
        close(compiled(**given).video_text_logits, made(**given).video_text_logits)
        for dtype in (torch.bfloat16, torch.float16):
            half = {name: value.to(dtype) if value.is_floating_point() else value for name, value in given.items()}
            assert made.to(dtype)(**half).video_audio_logits.isfinite().all()


def test_saved_counted_traced_and_drawn(tmp_path) -> None:
    made, given = model(), clips(1, 1)
    af.save(made, tmp_path / "m")
    again = af.load(tmp_path / "m")
    assert again.spec.replace(source={}) == made.spec.replace(source={})
    assert again.audio.encoder.norm.weight is again.text.encoder.norm.weight
    with torch.no_grad():
        plain = made(**given)
        assert torch.equal(again(**given).video_audio_logits, plain.video_audio_logits)
        run = af.trace(made, keep=["*.encoder.layers.1.attention.op.weights"], **given)
        assert torch.equal(run.output.video_text_logits, plain.video_text_logits)
        close(run["video.encoder.layers.1.attention.op.weights"].sum(-1), torch.ones(1, 2, 8))
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            made(**{**given, "input_values": torch.zeros(1, 120), "input_ids": torch.zeros(1, 20).long()})
    assert af.count(made.spec).flops(20) == counter.get_total_flops()
    assert "tied to text.encoder" in af.draw(made.spec).svg
    with pytest.raises(ValueError, match="format='anyformer'"):
        af.save(made, tmp_path / "hf", format="hf")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("input_ids", "input_values"), "pixel_values.*input_ids.*input_values"),
        (("pixel_values",), "pixel_values.*input_ids.*input_values"),
    ],
)
def test_what_is_missing_is_said(given: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        model()(**{name: clips()[name] for name in given})


@pytest.mark.parametrize(
    ("config", "what"),
    [({"num_attention_heads": 5}, "multiple of num_attention_heads 5"), ({"token_drop": 1.0}, "token_drop"),
     ({"segment_size": 0}, "size"), ({"temperature": 0.0}, "temperature"), ({"patch_size": 9}, "patch")],
)  # fmt: skip
def test_refused(config: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        af.build(description(**config), device="meta")


def test_spaces_are_as_wide_as_said() -> None:
    with pytest.raises(ValueError, match=r"text\.head\.width.* 9.*head\.width.* 7"):
        af.override(description(), {"head.width": 7})
    with pytest.raises(ValueError, match=r"audio\.encoder.*text\.encoder"):
        af.override(description(), {"audio.encoder.depth": 3})


def test_every_field_shapes_the_description() -> None:
    family = families.find("vatt")
    other = {"hidden_act": "relu", "token_drop": 0.25, "num_attention_heads": 8}
    for name, field in family.fields.items():
        value = other.get(name, field.default * 2)
        spec = family.read({name: value})
        assert spec.replace(source={}) != family.read({}).replace(source={}), name
        assert field.recover(spec) == value, name
