"""LIMoE: no class is published. Oracles are its losses written out, dense towers with equal weights, and its size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from catalogue import close, holds
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from unpublished import description, pairs

import anyformer as af
from anyformer.evaluate import invariants
from anyformer.evaluate.invariants import EXACT
from anyformer.kernels.capture import graph_capture
from anyformer.parts.feedforward.balance import EntropyBalance
from anyformer.runtime.context import Context
from anyformer.transforms.lora import LoRA
from anyformer.transforms.lora import apply as adapt


def model(**more: Any) -> Any:
    made = af.build(description("limoe", **more), seed=0).eval()
    with torch.no_grad():  # so that routers are decisive
        for name, parameter in made.named_parameters():
            parameter.mul_(20 if "router" in name else 1)
    return made


def test_the_published_size() -> None:
    """H/14: 5.6 billion parameters; 675 million are active per token."""
    count = af.count(af.spec("limoe-h14"))
    assert round(count.parameters / 1e8) == 56 and round(count.active / 1e6) in (675, 676)
    small = af.count(description("limoe"))
    made = model()
    assert small.parameters == sum(p.numel() for p in made.parameters())
    expert = 2 * 24 * 40 + 40 + 24
    assert small.parameters - small.active == 2 * 3 * expert  # two layers, one with four experts


def test_both_towers_are_one_stack() -> None:
    made = model()
    mine, other = dict(made.text.encoder.named_parameters()), dict(made.image.encoder.named_parameters())
    assert mine.keys() == other.keys() and all(mine[name] is other[name] for name in mine)
    assert made.text.head.project.weight is not made.image.head.project.weight
    x = torch.randn(1, 16, 24)
    ctx = Context(index=torch.arange(16), positions=torch.arange(16)[None])
    close(made.text.encoder(x, ctx)[0], made.image.encoder(x, ctx)[0])
    pattern = made.spec.text.encoder.pattern
    assert pattern == ("dense", "dense", "experts", "dense", "experts")


def test_without_experts_it_is_two_towers_of_the_same_weights() -> None:
    """One expert that every token uses with probability 1 equals the layer of a dense model."""
    sparse = model(num_experts=1, text_experts=1, image_experts=1)
    dense: Any = sparse.spec.text.encoder.replace(layers=sparse.spec.text.encoder.layers["dense"], pattern=())
    spec = sparse.spec.replace(
        ties=(), text=sparse.spec.text.replace(encoder=dense), image=sparse.spec.image.replace(encoder=dense)
    )
    plain = af.build(spec).eval()
    state = {}
    for name, tensor in sparse.state_dict(keep_vars=True).items():
        if ".experts." in name:
            path, leaf = name.split(".experts.")
            kind = "bias" if leaf.endswith("bias") else "weight"
            state[f"{path}.{leaf.removesuffix('_bias')}.{kind}"] = tensor[0] if kind == "bias" else tensor[0].t()
        elif ".router." not in name:
            state[name] = tensor
    plain.load_state_dict(state)
    with torch.no_grad():
        close(sparse(**pairs()).logits_per_text, plain(**pairs()).logits_per_text)


def test_the_losses_of_the_paper() -> None:
    """Per modality: the mean entropy of a token, and the gap of the entropy of the mean to log S, token by token."""
    generator = torch.Generator().manual_seed(0)
    layers = [3 * torch.randn(2, 5, 4, generator=generator) for _ in range(2)]
    real = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    local, lacking, z = [], [], []
    for logits in layers:
        rows = [row.tolist() for row in logits[real].softmax(-1)]
        local.append(np.mean([-sum(p * math.log(p) for p in row) for row in rows]))
        mean = np.mean(rows, axis=0)
        lacking.append(max(0.0, math.log(3.7) + sum(p * math.log(p) for p in mean)))
        z.append(np.mean([math.log(sum(math.exp(v) for v in row)) ** 2 for row in logits[real].tolist()]))
    part = EntropyBalance(local=0.3, whole=0.5, experts=3.7, z_weight=0.1)
    for shape in ((2, 5, 4), (10, 4)):
        ctx = Context(index=torch.arange(5), positions=torch.arange(5)[None], is_token=real)
        ctx.losses["router_logits"] = [logits.view(shape) for logits in layers]
        terms = part.terms(ctx)
        assert float(terms["local_loss"]) == pytest.approx(np.mean(local), abs=1e-5)
        assert float(terms["global_loss"]) == pytest.approx(np.mean(lacking), abs=1e-5) and max(lacking) > 0
        assert float(terms["z_loss"]) == pytest.approx(np.mean(z), abs=1e-4)
        whole = 0.3 * np.mean(local) + 0.5 * np.mean(lacking) + 0.1 * np.mean(z)
        assert float(part.total(terms)) == pytest.approx(whole, abs=1e-4)


def test_the_loss_of_a_training_step_has_both_modalities() -> None:
    made, given = model().train(), pairs()
    out = made(**given, return_loss=True)
    own = torch.arange(3)
    contrast = (F.cross_entropy(out.logits_per_text, own) + F.cross_entropy(out.logits_per_image, own)) / 2
    parts = [made.text(input_ids=given["input_ids"]), made.image(pixel_values=given["pixel_values"])]
    close(out.loss, contrast + parts[0].aux_loss + parts[1].aux_loss)
    close(parts[0].aux_loss, 0.04 * (parts[0].local_loss + parts[0].global_loss) + 1e-4 * parts[0].z_loss)
    close(parts[1].aux_loss, 0.04 * parts[1].global_loss + 1e-4 * parts[1].z_loss)
    close(made.eval()(**given, return_loss=True).loss, contrast)


def test_invariants() -> None:
    made, given = model(), pairs()
    holds(invariants.check_rows, made, given)
    holds(invariants.check_padding, made, given, pads=9)
    holds(invariants.check_gradients, made, {**given, "return_loss": True}, EXACT)
    padded = F.pad(given["input_ids"], (0, 9))
    with torch.no_grad():
        plain = made.text(input_ids=given["input_ids"]).text_embeds
        assert not torch.allclose(made.text(input_ids=padded).text_embeds, plain, atol=1e-3)  # without a mask
        assert made.text(input_ids=padded, attention_mask=torch.zeros_like(padded)).text_embeds.isfinite().all()


def test_a_shared_stack_is_stored_once_and_stays_shared(tmp_path) -> None:
    made = model()
    af.save(made, tmp_path / "m")
    with af.weights.io.Checkpoint(tmp_path / "m") as stored:
        assert not [name for name in stored.names if name.startswith("image.encoder.")]
    made.resize_token_embeddings(70)
    assert made.image.encoder.norm.weight is made.text.encoder.norm.weight


def test_what_experts_do_is_traced_by_modality() -> None:
    made, given = model(), pairs()
    with torch.no_grad():
        plain = made(**given).logits_per_text
        run = af.trace(made, keep=["*.encoder.layers.*.feedforward.op.router.weights"], **given)
        assert torch.equal(run.output.logits_per_text, plain)
        texts, images = (run[f"{side}.encoder.layers.2.feedforward.op.router.weights"] for side in ("text", "image"))
        assert texts.shape == (3 * 7, 1) and images.shape == (3 * 16, 1)
        shown = made(**given, output_router_logits=True)
        assert [each.shape for each in shown.text_model_output.router_logits] == [(21, 4)] * 2
        chosen = shown.text_model_output.router_logits[0].softmax(-1).max(-1, keepdim=True).values
        close(texts, chosen)
        changed = af.trace(made, change={"image.encoder.layers.2": lambda x, at: x * 2}, **given).output
        assert torch.equal(changed.text_embeds, run.output.text_embeds)
        assert not torch.allclose(changed.image_embeds, run.output.image_embeds)


def test_counted_and_drawn() -> None:
    spec = description("limoe")
    assert "tied to text.encoder" in af.draw(spec).svg
    made, given = model(), {name: value[:1] for name, value in pairs().items()}
    experts = {torch.ops.anyformer.grouped_linear: lambda x, w, *rest, **more: 2 * x[0] * x[1] * w[2]}
    with (
        FlopCounterMode(display=False, custom_mapping=experts) as counter,
        sdpa_kernel(SDPBackend.MATH),
        graph_capture(),
    ):
        made(**given)  # one token in three is dropped, so every product runs separately
    assert af.count(spec).flops(7) == counter.get_total_flops()


def test_every_other_layer_may_have_experts() -> None:
    stack = description("limoe", num_hidden_layers=4, num_expert_layers=2).text.encoder
    assert stack.pattern == ("dense", "experts", "dense", "experts")


def test_one_stack_is_changed_on_both_sides() -> None:
    spec = description("limoe")
    with pytest.raises(ValueError, match=r"image\.encoder.*text\.encoder"):
        af.override(spec, {"text.encoder.depth": 3})
    both = af.override(spec, {"text.encoder.depth": 3, "image.encoder.depth": 3})
    assert len(af.build(both).image.encoder.layers) == 3
    with pytest.raises(ValueError, match="ties.*tied twice"):
        spec.replace(ties=spec.ties * 2)
    with pytest.raises(ValueError, match="shares its weights with another layer"):
        adapt(model(), LoRA(targets=("text.encoder.layers.*.q",)))
