"""The diffusion transformer against diffusers, in addition to the checks of every family."""

from __future__ import annotations

import inspect
import json
import warnings
from typing import Any

import pytest
import torch
from catalogue import Case, close, every_case, make_inputs, over, published, randomise, shared
from diffusing import diffusers, round_trips

import anyformer as af
from anyformer import families
from anyformer.families.base.fields import Entry, Fixed, UnknownFieldWarning
from anyformer.parts.diffusion import NoiseSchedule

FAMILY = families.find("dit")
CASES = [case for case in every_case() if case.model_type == "dit"]


@over(CASES)
def test_l5_round_trips(case: Case, tmp_path) -> None:
    model = shared(case)
    round_trips(case, diffusers.DiTTransformer2DModel, tmp_path)
    af.save(model, tmp_path / "hf", overwrite=True)  # reads what was written last
    assert [each.name for each in sorted((tmp_path / "hf").glob("*.safetensors"))] == ["model.safetensors"]
    assert torch.equal(af.load(tmp_path / "hf").head.out.weight, model.head.out.weight)


def test_every_config_field_is_accounted_for() -> None:
    fields = [*inspect.signature(diffusers.DiTTransformer2DModel.__init__).parameters][1:]
    assert {*fields} <= FAMILY.fields.keys()
    other: dict[str, Any] = {"activation_fn": "geglu", "out_channels": 5, "attention_bias": False, "patch_size": 4}
    other |= {"num_embeds_ada_norm": 9, "norm_elementwise_affine": True, "norm_eps": 1e-3, "dropout": 0.2}
    other |= {"sample_size": 24, "num_layers": 3, "in_channels": 4, "num_attention_heads": 2, "attention_head_dim": 4}
    plain = FAMILY.read(CASES[0].config).replace(source={})
    for name in fields:
        if isinstance(FAMILY.fields[name], Entry):
            changed = FAMILY.read({**CASES[0].config, name: other[name]})
            assert changed.replace(source={}) != plain, name
            assert FAMILY.write(changed)[name] == other[name]
    for name in (name for name in fields if isinstance(FAMILY.fields[name], Fixed)):
        with pytest.raises(ValueError, match=name):
            FAMILY.read({**CASES[0].config, name: "ada_norm"})
    for wrong in ({"activation_fn": "gelv"}, {"beta_schedule": "linaer"}):
        with pytest.raises(ValueError, match="did you mean"):
            FAMILY.read({**CASES[0].config, **wrong})


def test_fields_of_the_older_class_are_silent_unless_they_say_something() -> None:
    old = {"use_linear_projection": False, "cross_attention_dim": None, "double_self_attention": False,
           "only_cross_attention": False, "num_vector_embeds": None, "attention_type": "default"}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = FAMILY.read({**CASES[0].config, **old})
    for name in old:
        with pytest.warns(UnknownFieldWarning, match=name):
            assert FAMILY.read({**CASES[0].config, name: 7}).replace(source={}) == plain.replace(source={})


def test_noise_is_that_of_ddpm_where_nothing_is_said() -> None:
    assert FAMILY.read(CASES[0].config).head.schedule == NoiseSchedule()
    other = {"beta_schedule": "scaled_linear", "beta_start": 1e-3, "beta_end": 0.1, "num_train_timesteps": 50,
             "timestep_spacing": "leading", "steps_offset": 1}  # fmt: skip
    assert FAMILY.read({**CASES[0].config, **other}).head.schedule == NoiseSchedule(
        curve="scaled_linear", start=1e-3, end=0.1, steps=50, spacing="leading", offset=1
    )


ACTIVATIONS = ("gelu", "gelu-approximate", "geglu", "geglu-approximate", "swiglu", "linear-silu")


@torch.no_grad()
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_other_sizes(activation: str, tmp_path) -> None:
    config = {**CASES[0].config, "activation_fn": activation, "num_layers": 1}
    theirs = diffusers.DiTTransformer2DModel(**config).eval()
    randomise(theirs)
    theirs.save_pretrained(tmp_path)
    mine = af.load(tmp_path)
    for side in (12, 20):  # sines of a finer grid are closer to each other
        inputs = {**make_inputs(CASES[0]), "hidden_states": torch.randn(2, 3, side, side)}
        close(mine(**inputs).sample, theirs(**inputs).sample)


@pytest.mark.parametrize("activation", ["gelu", "geglu"])
def test_dropout_is_where_the_published_class_has_it(activation: str) -> None:
    config = {**CASES[0].config, "activation_fn": activation, "dropout": 0.4, "num_layers": 1}
    theirs = diffusers.DiTTransformer2DModel(**config).transformer_blocks[0]
    steps = FAMILY.read(config).encoder.layers.steps
    assert steps["attention"].dropout == theirs.attn1.to_out[1].p == 0.4
    assert steps["feedforward"].op.dropout == theirs.ff.net[1].p == 0.4
    assert steps["feedforward"].dropout == 0 and len(theirs.ff.net) == 3  # no padding at the end


@torch.no_grad()
def test_the_file_of_the_older_class_opens(tmp_path) -> None:
    """The paper's models were published as a Transformer2DModel, with fields of other models."""
    published(CASES[0])[0].save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    old = {"_class_name": "Transformer2DModel", "num_vector_embeds": None, "only_cross_attention": False}
    (tmp_path / "config.json").write_text(json.dumps({**config, **old}))
    inputs, model = make_inputs(CASES[0]), af.load(tmp_path)
    close(model(**inputs).sample, published(CASES[0])[0](**inputs).sample)
    assert "_class_name" not in model.spec.source  # it is written from the family


@torch.no_grad()
def test_one_condition_for_all_layers(tmp_path) -> None:
    """The paper has one embedder; published files store it once per layer."""
    spec = FAMILY.read({**CASES[0].config, "per_layer": False})
    model = af.build(spec, seed=0).eval()
    randomise(model)
    af.save(model, tmp_path, format="hf")
    theirs = diffusers.DiTTransformer2DModel.from_pretrained(tmp_path).eval()
    inputs = make_inputs(CASES[0])
    close(model(**inputs).sample, theirs(**inputs).sample)
    again = af.load(tmp_path)
    assert again.spec.replace(source={}) == spec.replace(source={})
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in again.state_dict().items())


@pytest.mark.parametrize("name", FAMILY.sizes)
def test_counts_of_the_paper(name: str) -> None:
    """Equal to the paper's count in millions, and exactly equal to diffusers', which stores embedders once per
    layer."""
    spec, size = af.spec(name), FAMILY.sizes[name]
    assert round(af.count(spec).parameters / 1e6) * 1e6 == size.published
    config = {key: value for key, value in size.config.items() if key != "per_layer"}
    with torch.device("meta"):
        theirs = diffusers.DiTTransformer2DModel(**config)
    each = af.override(spec, {"embedding.condition.per_layer": True})
    assert af.count(each).parameters == sum(p.numel() for p in theirs.parameters())


@torch.no_grad()
def test_a_text_is_looked_at() -> None:
    """With text: other words give another noise; padding of the text changes nothing."""
    changes = {"encoder.depth": 2, "width": 32, "encoder.layers.attention.op.num_heads": 2,
               "encoder.layers.cross_attention.op.num_heads": 2, "encoder.layers.feedforward.op.width": 64}  # fmt: skip
    model = af.build(af.override(af.spec("dit-text-s-2"), changes)).eval()
    randomise(model)
    text, mask = torch.randn(2, 5, 512), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    inputs = {"hidden_states": torch.randn(2, 4, 32, 32), "timestep": torch.tensor([1, 500])}
    first = model(**inputs, encoder_hidden_states=text, encoder_attention_mask=mask).sample
    assert first.shape == (2, 8, 32, 32)
    text[1, 3:] += 1.0
    assert torch.equal(model(**inputs, encoder_hidden_states=text, encoder_attention_mask=mask).sample, first)
    text[1, 0] += 1.0
    second = model(**inputs, encoder_hidden_states=text, encoder_attention_mask=mask).sample
    assert torch.equal(second[0], first[0]) and not torch.allclose(second[1], first[1])
    with pytest.raises(ValueError, match="omit class_labels"):
        model(**inputs, class_labels=torch.tensor([0, 1]))


def test_a_new_model_changes_nothing_and_every_weight_can_learn() -> None:
    """adaLN-Zero: initially each layer is the identity and the predicted noise is zero."""
    spec = FAMILY.read({**CASES[0].config, "per_layer": False})
    model, inputs = af.build(spec, seed=0), make_inputs(CASES[0])
    with torch.no_grad():
        assert not model(**inputs).sample.any()
        states = model.eval()(**inputs, output_hidden_states=True).hidden_states
    assert len(states) == 3 and torch.equal(states[0], states[1])
    randomise(model)
    model(**inputs).sample.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@torch.no_grad()
def test_what_is_not_a_picture_in_noise_is_told() -> None:
    model, inputs = shared(CASES[0]), make_inputs(CASES[0])
    for wrong, line in (
        ({"hidden_states": torch.zeros(2, 4, 12, 12)}, r"3 channels.*got \(2, 4, 12, 12\)"),
        ({"timestep": torch.tensor([1, 2, 3])}, r"timestep.* 2 images, got \(3,\)"),
        ({"timestep": None}, "timestep.*got None"),
        ({"class_labels": torch.tensor([1, 8])}, "class_labels: 8 .* 0 to 6, or 7 "),
        ({"class_labels": torch.tensor([[1, 2]])}, "class_labels.*shape"),
        ({"class_labels": torch.tensor([1.0, 2.0])}, "class_labels.*integers.*float32"),
    ):
        with pytest.raises(ValueError, match=line):
            model(**{**inputs, **wrong})
    nobody = {**inputs, "class_labels": torch.tensor([7, 7])}
    assert torch.equal(model(**nobody).sample, model(**{**inputs, "class_labels": None}).sample)
    with pytest.raises(ValueError, match="AdaptiveNorm .*condition.*TextEmbedding"):
        norm = {"kind": "AdaptiveNorm"}
        af.override(af.spec("gpt2"), {"decoder.layers.attention.pre_norm": norm})
    with pytest.raises(ValueError, match="AdaptiveNorm .*Norm"):
        af.override(model.spec, {"encoder.layers.attention.op.qk_norm": {"kind": "AdaptiveNorm"}})
