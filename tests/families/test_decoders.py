"""OPT, GPT-NeoX, BLOOM, GPT, CTRL, BART and M2M-100 beyond the catalogue: holes in a mask, old config files, refusals,
and the std of initial weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import bloom, ctrl, deepseek, gemma2, gpt2, gpt_neox, llama, mistral, mixtral, opt
from catalogue import Case, cases, close, make_inputs, over, published, settings, shared, spec_of

import anyformer as af
from anyformer import families
from anyformer.parts.embedding.segment_ids import TokenSegments
from anyformer.weights.rules import plan

MINE = ("opt", "gpt_neox", "bloom", "openai-gpt", "ctrl", "bart", "m2m_100")
CASES = [case for case in cases() if case.model_type in MINE]
BY_ID = {case.id: case for case in CASES}


@pytest.mark.parametrize("name", ["OPTForCausalLM", "OPTForCausalLM-post", "BloomForCausalLM", "BloomForCausalLM-odd"])
@torch.no_grad()
def test_holes_in_a_mask_take_no_room(name: str) -> None:
    """Published: positions (OPT) and distances (BLOOM) count only real tokens, with and without a cache."""
    case = BY_ID[name]
    inputs, model = make_inputs(case), shared(case)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, 3:7], mask[1, -2:] = 0, 0
    expected = published(case)[0](**inputs, attention_mask=mask).logits
    close(model(**inputs, attention_mask=mask).logits[mask.bool()], expected[mask.bool()])
    state, steps = model.new_state(), []
    for start, end in ((0, 5), (5, 10), (10, 11), (11, 17)):
        part, seen = inputs["input_ids"][:, start:end], mask[:, :end]
        steps.append(model(input_ids=part, attention_mask=seen, past_key_values=state).logits)
    close(torch.cat(steps, dim=1)[mask.bool()], expected[mask.bool()])


OLD: dict[str, dict[str, Any]] = {  # as in files published years ago
    "opt": {"activation_dropout": 0.0, "word_embed_proj_dim": 512, "hidden_size": 768, "do_layer_norm_before": False},
    "gpt_neox": {"rotary_pct": 0.25, "rotary_emb_base": 10000, "rope_theta": 10000, "partial_rotary_factor": 0.25,
                 "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0, "hidden_act": "gelu_fast"},
    "bloom": {"n_embed": 1024, "n_layer": 24, "num_attention_heads": 16, "n_inner": None, "offset_alibi": 100,
              "seq_length": 2048, "skip_bias_add": True, "skip_bias_add_qkv": False, "masked_softmax_fusion": True,
              "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "unk_token_id": 0},
    "openai-gpt": {"n_ctx": 512, "n_special": 0, "predict_special_tokens": True, "afn": "gelu"},
    "ctrl": {"attn_pdrop": 0.1, "from_tf": False, "n_ctx": 512, "output_past": True, "summary_type": "cls_index"},
    "bart": {"normalize_before": False, "normalize_embedding": True, "add_final_layer_norm": False, "prefix": " ",
             "static_position_embeddings": False, "extra_pos_embeddings": 2, "num_hidden_layers": 12,
             "force_bos_token_to_be_generated": True, "forced_bos_token_id": 0, "early_stopping": True},
    "m2m_100": {"num_hidden_layers": 12, "early_stopping": True, "num_beams": 5, "max_length": 200},
}  # fmt: skip


@pytest.mark.parametrize("model_type", OLD)
def test_old_config_files_are_read(model_type: str) -> None:
    family = families.find(model_type)
    spec = family.read(OLD[model_type])
    assert family.read(family.write(spec)).replace(source={}) == spec.replace(source={})


def test_bart_has_three_labels_unless_said() -> None:
    family, name = families.find("bart"), "BartForSequenceClassification"
    assert family.read({"architectures": [name]}).head.num_labels == 3
    assert family.read({"architectures": [name], "id2label": {"0": "a", "1": "b"}}).head.num_labels == 2


@torch.no_grad()
def test_bart_finds_the_end_of_each_text() -> None:
    case = BY_ID["BartForSequenceClassification"]
    model, inputs = shared(case), make_inputs(case, batch=2)
    ids = inputs["input_ids"][:, :12].clone()
    ids[ids == 2] = 7
    with pytest.raises(ValueError, match="token 2"):
        model(input_ids=ids)
    ids[0, 3], ids[1, 11] = 2, 2  # without decoder input, the decoder reads the source
    mask = torch.tensor([[1] * 4 + [0] * 8, [1] * 12])
    close(model(input_ids=ids, attention_mask=mask).logits, published(case)[0](ids, attention_mask=mask).logits)
    close(model(input_ids=ids, attention_mask=mask).logits[:1], model(input_ids=ids[:1, :4]).logits)


@over(CASES, settings)
def test_weights_start_as_published(case: Case) -> None:
    family, spec = families.find(case.model_type), spec_of(case)
    theirs = type(published(case)[0])(type(published(case)[0].config)(**case.config)).state_dict()
    mine = dict(af.build(spec, seed=0).named_parameters())
    for step in plan(family.rules(spec), mine, family.prefix_of(case.architecture))[0]:
        other = theirs.get(step.sources[0].replace("embed_out", "lm_head"))
        assert other is not None, step.sources[0]
        ours = step.rule.save([mine[target].detach() for target in step.targets])[0]
        scale = float(other.pow(2).mean().sqrt())
        spread = 6 / ours.numel() ** 0.5 * scale + 1e-7
        assert abs(float(ours.pow(2).mean().sqrt()) - scale) <= spread, step.sources[0]
        assert abs(float(ours.mean() - other.mean())) <= spread, step.sources[0]


@pytest.mark.parametrize("name", ["CTRLLMHeadModel", "OpenAIGPTLMHeadModel", "OPTForCausalLM-post", "BartModel-odd"])
@torch.no_grad()
def test_kinds_of_token_and_given_vectors(name: str) -> None:
    case = BY_ID[name]
    inputs, theirs, model = make_inputs(case), published(case)[0], shared(case)
    if isinstance(model.spec.embedding.segments, TokenSegments):
        inputs["token_type_ids"] = inputs["input_ids"].flip(-1)
        close(model(**inputs)[0], theirs(**inputs)[0])
    vectors = theirs.get_input_embeddings()(inputs.pop("input_ids"))
    close(model(**inputs, inputs_embeds=vectors)[0], theirs(**inputs, inputs_embeds=vectors.clone())[0])


YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 20.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 2.5, 3.0, 3.5]}
WARM = {"rope_type": "linear", "factor": 4.0, "rope_theta": 20.0, "mscale_all_dim": 0.9}
PART = {"rope_type": "proportional", "rope_theta": 20.0, "partial_rotary_factor": 0.5}
BOTH_SIDES = {
    "gpt2": ("GPT2Model", gpt2.SMALL), "gpt_neox": ("GPTNeoXModel", gpt_neox.SMALL), "opt": ("OPTModel", opt.SMALL),
    "bloom": ("BloomModel", bloom.SMALL), "ctrl": ("CTRLModel", ctrl.SMALL), "llama": ("LlamaModel", llama.SMALL),
    "mixtral": ("MixtralModel", mixtral.SMALL), "deepseek_v2": ("DeepseekV2Model", deepseek.SMALL),
    "deepseek_v3": ("DeepseekV3Model", deepseek.V3), "gemma2": ("Gemma2Model", gemma2.SMALL),
}  # fmt: skip
# fields that published code reads although no config class, or not this one, has them, and valid values
READ = [
    *[Case(name, kind, {**small, "is_causal": False}, "both-sides") for name, (kind, small) in BOTH_SIDES.items()],
    Case("mixtral", "MixtralModel", {**mixtral.SMALL, "is_causal": False, "sliding_window": 3}, "both-sides-near"),
    # a token sees itself only. With a cache, transformers 5.22 lets it see all earlier ones (keys[:, :, -1 + 1:])
    Case("mistral", "MistralForCausalLM", {**mistral.SMALL, "sliding_window": 1}, "sees-itself"),
    Case("gemma2", "Gemma2Model", {**gemma2.SMALL, "is_causal": False, "layer_types": ["sliding_attention"] * 3},
         "both-sides-near"),
    *[Case(name, f"{kind}ForTokenClassification", {**small, "token_classification_bias": False}, "no-bias")
      for name, kind, small in (("llama", "Llama", llama.SMALL), ("mixtral", "Mixtral", mixtral.SMALL),
                                ("deepseek_v3", "DeepseekV3", deepseek.V3))],
    *[Case("llama", "LlamaModel", {**llama.SMALL, "rope_parameters": rope}, f"read-{i}")
      for i, rope in enumerate((PART, {"rope_type": "default", "partial_rotary_factor": 0.5}))],
    *[Case("llama", "LlamaModel", {**llama.SMALL, "rope_parameters": rope, "original_max_position_embeddings": length},
           f"trained-{rope['rope_type']}-{length}")
      for rope, length in ((YARN, 30), ({**YARN, "original_max_position_embeddings": 9}, 30), (LONG, 16), (LONG, 17))],
    Case("gpt_neox", "GPTNeoXModel", {**gpt_neox.SMALL, "rope_parameters": PART}, "read-part"),
    Case("gpt_neox", "GPTNeoXModel",
         {**gpt_neox.SMALL, "rope_theta": 20.0, "rotary_pct": 0.5, "partial_rotary_factor": 1.0}, "beside"),
    *[Case(name, kind, {**small, **more}, f"read-{next(iter(more))}")
      for name, kind, small in (("deepseek_v2", "DeepseekV2Model", deepseek.SMALL),
                                ("deepseek_v3", "DeepseekV3Model", deepseek.V3))
      for more in ({"num_key_value_heads": 3}, {"qk_head_dim": 99}, {"num_hidden_layers": 0},
                   {"rope_parameters": WARM})],
    Case("bloom", "BloomModel", {**bloom.SMALL, "per_layer_config": {}}, "alike"),
]  # fmt: skip


@pytest.mark.parametrize("case", READ, ids=lambda case: case.id)
@torch.no_grad()
def test_what_published_code_reads_beyond_its_config_class(case: Case) -> None:
    theirs, model = published(case)[0], shared(case)
    inputs = make_inputs(case)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, -5:] = 0
    close(model(**inputs)[0], theirs(**inputs)[0])
    close(model(**inputs, attention_mask=mask)[0][mask.bool()], theirs(**inputs, attention_mask=mask)[0][mask.bool()])
    family = families.find(case.model_type)
    assert family.read(family.write(model.spec)).replace(source={}) == model.spec.replace(source={})


def test_a_model_that_writes_sees_no_future_whatever_its_config_says() -> None:
    with pytest.raises(ValueError, match="llama config: .*mask: Full .*Causal"):
        families.find("llama").read({**llama.SMALL, "is_causal": False})


@torch.no_grad()
def test_a_config_that_asks_for_tuples_writes_too() -> None:
    model = shared(BY_ID["BloomForCausalLM"])
    ids = make_inputs(BY_ID["BloomForCausalLM"])["input_ids"]
    tuples = af.build(model.spec.replace(source={**model.spec.source, "return_dict": False}), seed=0).eval()
    tuples.load_state_dict(model.state_dict())
    assert isinstance(tuples(input_ids=ids), tuple)
    for cached in (True, False):
        wanted = af.generate(model, input_ids=ids, max_new_tokens=3, use_cache=cached)
        assert torch.equal(af.generate(tuples, input_ids=ids, max_new_tokens=3, use_cache=cached), wanted)
