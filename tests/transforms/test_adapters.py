"""Adapters in PEFT's layout: the PEFT library loads ours with equal outputs, and we load PEFT's."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.transforms import adapters, lora
from anyformer.transforms.lora import LoRA
from anyformer.weights.io import Checkpoint, write_checkpoint
from small import close
from tiny import CONFIGS, inputs_of, model_of

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

WIDE = LoRA(rank=2, alpha=6.0, targets=("*.q", "*.v", "*.up"))
NEOX = {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "vocab_size": 50}


@torch.no_grad()
def moved(model: Any, seed: int = 4) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


@torch.no_grad()
def logits(model: Any, family: str) -> torch.Tensor:
    return model.eval()(**inputs_of(family)).logits


def base_of(family: str, folder: Path) -> Path:
    """Save a model in the published layout and return its folder."""
    af.save(model_of(family), folder / "base", format="hf")
    return folder / "base"


def theirs(folder: Path, family: str) -> Any:
    return getattr(transformers, CONFIGS[family]["architectures"][0]).from_pretrained(folder).eval()


@pytest.mark.parametrize("family", CONFIGS)
def test_peft_opens_ours(family: str, tmp_path: Path) -> None:
    base = base_of(family, tmp_path)
    model = moved(lora.apply(af.load(base), WIDE))
    af.save(model, tmp_path / "adapter", format="peft")
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base) and config["peft_type"] == "LORA"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PEFT only warns about a tensor that does not fit
        opened = peft.PeftModel.from_pretrained(theirs(base, family), tmp_path / "adapter")
    assert (logits(opened, family) - logits(theirs(base, family), family)).abs().max() > 0.01
    close(logits(opened, family), logits(model, family), 1e-5)
    again = af.load(tmp_path / "adapter")
    assert {a: layer.lora_a.shape for a, layer in lora.adapted_layers(again).items()} == {
        a: layer.lora_a.shape for a, layer in lora.adapted_layers(model).items()
    }  # without the zeros that the fused published layer needs
    assert torch.equal(logits(again, family), logits(model, family))
    assert {n for n, p in again.named_parameters() if p.requires_grad} == {
        n for n, p in model.named_parameters() if p.requires_grad
    }
    af.save(again, tmp_path / "merged", format="hf")
    close(logits(theirs(tmp_path / "merged", family), family), logits(model, family), 1e-5)


def test_names_are_those_of_the_published_class(tmp_path: Path) -> None:
    model = moved(lora.apply(af.load(base_of("gpt2", tmp_path)), WIDE))
    af.save(model, tmp_path / "adapter", format="peft")
    with Checkpoint(tmp_path / "adapter", stem="adapter_model") as stored:
        name = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"
        assert name in stored and stored.shape(name) == (4, 24)  # ranks of q and v
        assert stored.shape(name.replace("lora_A", "lora_B")) == (72, 4)
        assert not stored.read(name.replace("lora_A", "lora_B"))[24:48].any()  # k has no adapter
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["target_modules"] == ["c_attn", "c_fc"] and config["fan_in_fan_out"] is True
    assert (config["r"], config["lora_alpha"]) in ((4, 12.0), (2, 6.0))
    assert config["task_type"] == "CAUSAL_LM" and sorted(config["rank_pattern"].values()) in ([2, 2], [4, 4])


PATTERNS = {
    "r": 3, "lora_alpha": 5, "lora_dropout": 0.1,
    "rank_pattern": {r"h\.1\.attn\.c_attn": 5, "mlp.c_proj": 2}, "alpha_pattern": {r"h\.0\..*": 7, "mlp.c_fc": 9},
}  # fmt: skip
WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "joined and turned": ("gpt2", {**PATTERNS, "target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "rank-stabilised": ("gpt2", {"target_modules": ["c_fc"], "use_rslora": True, "r": 4, "lora_alpha": 3}),
    "embeddings, no longer tied": ("gpt2", {"target_modules": ["c_attn"], "modules_to_save": ["wte"]}),
    "embedding and head, each its own": ("gpt2", {"target_modules": ["c_attn"], "modules_to_save": ["wte", "lm_head"]}),
    "several": ("llama", {"target_modules": "all-linear", "rank_pattern": {"q_proj": 4}, "modules_to_save": ["lm_head"],
                          "exclude_modules": ["lm_head"]}),
    "some layers": ("llama", {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1]}),
    "biases": ("bert", {"target_modules": ["query", "dense"], "bias": "lora_only", "init_lora_weights": "gaussian"}),
    "both stacks": ("t5", {"target_modules": ["q", "v", "wi_0", "wo"], "modules_to_save": ["layer_norm"]}),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITTEN)
def test_we_open_what_peft_wrote(case: str, tmp_path: Path) -> None:
    family, options = WRITTEN[case]
    base = base_of(family, tmp_path)
    model = moved(peft.get_peft_model(theirs(base, family), peft.LoraConfig(**options)))
    model.save_pretrained(tmp_path / "adapter")
    ours = af.load(tmp_path / "adapter")
    assert (logits(model, family) - logits(theirs(base, family), family)).abs().max() > 0.01
    close(logits(ours, family), logits(model, family), 1e-5)
    if case == "biases":
        with pytest.raises(ValueError, match="cannot store other trained weights next to the adapter of bert.*query"):
            af.save(ours, tmp_path / "again", format="peft")
    else:
        af.save(ours, tmp_path / "again", format="peft")
        again = peft.PeftModel.from_pretrained(theirs(base, family), tmp_path / "again")
        close(logits(again, family), logits(ours, family), 1e-5)
    close(logits(lora.merge(ours), family), logits(model, family), 1e-5)


def test_an_adapter_of_the_first_versions_of_peft(tmp_path: Path) -> None:
    """The config has no patterns."""
    model = moved(lora.apply(af.load(base_of("llama", tmp_path)), WIDE))
    af.save(model, tmp_path / "adapter", format="peft")
    path = tmp_path / "adapter/adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in config.items() if not name.endswith("_pattern")}))
    assert torch.equal(logits(af.load(tmp_path / "adapter"), "llama"), logits(model, "llama"))


def test_a_head_that_the_base_does_not_have(tmp_path: Path) -> None:
    """Our adapter stores the class and the labels; in PEFT the caller chooses the class."""
    base, ids = base_of("bert", tmp_path), inputs_of("bert")["input_ids"]
    spec = families.find("bert").read({**CONFIGS["bert"], "architectures": ["BertForSequenceClassification"],
                                       "id2label": {"0": "no", "1": "yes", "2": "maybe"}})  # fmt: skip
    model, _ = af.checkpoint.load_as(spec, base, strict=False)
    model.origin = str(base)
    af.save(moved(lora.apply(model, WIDE)), tmp_path / "adapter", format="peft")
    again = af.load(tmp_path / "adapter")
    assert again.spec.labels == ("no", "yes", "maybe") and not again.fresh
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)
        classes = transformers.BertForSequenceClassification.from_pretrained(base, num_labels=3)
        opened = peft.PeftModel.from_pretrained(classes, tmp_path / "adapter").eval()
        close(opened(input_ids=ids).logits, again(input_ids=ids).logits, 1e-5)
    (tmp_path / "adapter/spec.json").unlink()
    with pytest.raises(ValueError, match="has no layer classifier.weight"):
        af.load(tmp_path / "adapter")


def test_a_description_of_ones_own_has_our_addresses(tmp_path: Path) -> None:
    """PEFT wraps our module."""
    spec = af.override(model_of("gpt2").spec, {"decoder.layers.feedforward.op": {"kind": "GatedMLP", "width": 32}})
    af.save(af.build(spec, seed=3), tmp_path / "base")
    model = moved(lora.apply(af.load(tmp_path / "base"), WIDE))
    af.save(model, tmp_path / "adapter", format="peft")
    assert torch.equal(logits(af.load(tmp_path / "adapter"), "gpt2"), logits(model, "gpt2"))
    config = peft.LoraConfig.from_pretrained(tmp_path / "adapter")
    config.task_type = None  # PEFT's task classes need a transformers model
    opened = peft.PeftModel.from_pretrained(af.load(tmp_path / "base"), tmp_path / "adapter", config=config)
    close(logits(opened, "gpt2"), logits(model, "gpt2"), 1e-5)


def test_layers_that_a_published_one_interleaves(tmp_path: Path) -> None:
    """GPT-NeoX interleaves q, k and v by head."""
    model = moved(af.build(families.find("gpt_neox").read(NEOX), seed=0))
    af.save(model, tmp_path / "base", format="hf")
    model = moved(lora.apply(af.load(tmp_path / "base"), WIDE))
    af.save(model, tmp_path / "adapter", format="peft")
    base = transformers.GPTNeoXForCausalLM.from_pretrained(tmp_path / "base")
    close(logits(peft.PeftModel.from_pretrained(base, tmp_path / "adapter"), "gpt2"), logits(model, "gpt2"), 1e-5)
    assert torch.equal(logits(af.load(tmp_path / "adapter"), "gpt2"), logits(model, "gpt2"))


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
def test_an_embedding_that_the_head_shares(family: str, tmp_path: Path) -> None:
    """A trained tied embedding is stored under both of its names in PEFT's file."""
    base = base_of(family, tmp_path)
    model = af.load(base)
    assert model.spec.ties or family == "t5"
    moved(lora.apply(model, WIDE.replace(also=("embedding.tokens.weight",))))
    af.save(model, tmp_path / "adapter", format="peft")
    again = af.load(tmp_path / "adapter")
    assert again.spec.ties == model.spec.ties and torch.equal(logits(again, family), logits(model, family))
    opened = peft.PeftModel.from_pretrained(theirs(base, family), tmp_path / "adapter")
    close(logits(opened, family), logits(model, family), 1e-5)


# -- errors ------------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"use_dora": True}, "use_dora=True is not supported"),
    ({"peft_type": "IA3"}, "peft_type='IA3' is not supported; valid: 'LORA'"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa' is not supported"),
    ({"trainable_token_indices": [3, 4]}, r"trainable_token_indices=\[3, 4\] is not supported"),
    ({"lora_alpha": 0}, "lora_alpha=0 for transformer.h.0.attn.c_attn: must be a number above 0"),
    ({"base_model_name_or_path": None}, "does not name its base model; pass base="),
    ({"base_model_name_or_path": "./nowhere"}, "./nowhere: no such folder, the base model of this adapter; .*base="),
]


@pytest.mark.parametrize(("change", "why"), REFUSED, ids=[str(change) for change, _ in REFUSED])
def test_what_an_adapter_may_not_be(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    model = moved(lora.apply(af.load(base_of("gpt2", tmp_path)), WIDE))
    af.save(model, tmp_path / "adapter", format="peft")
    path = tmp_path / "adapter/adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises((ValueError, FileNotFoundError), match=why) as caught:
        af.load(tmp_path / "adapter")
    assert "\n" not in str(caught.value)
    if "base" in next(iter(change)):
        assert torch.equal(logits(af.load(tmp_path / "adapter", base=tmp_path / "base"), "gpt2"), logits(model, "gpt2"))


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    af.save(moved(lora.apply(af.load(base_of("gpt2", tmp_path)), WIDE)), tmp_path / "adapter", format="peft")
    with Checkpoint(tmp_path / "adapter", stem="adapter_model") as stored:
        good = {name: stored.read(name).clone() for name in stored.names}
    name = "base_model.model.transformer.h.1.attn.c_attn.lora_B.weight"
    changes = {
        "is missing": {name: None}, r"is \(70, 4\), not \(72, 4\)": {name: good[name][:70]},
        "contains NaN or infinity": {name: good[name] * float("nan")},
        "no layer transformer.h.7.a": {n.replace("h.1", "h.7"): t for n, t in good.items() if "h.1.attn.c_attn" in n},
        "lora_embedding_A is not supported": {"base_model.model.transformer.wte.lora_embedding_A": torch.ones(2, 50)},
    }  # fmt: skip
    model = af.load(tmp_path / "base")
    for why, change in changes.items():
        tensors = {n: t for n, t in {**good, **change}.items() if t is not None}
        write_checkpoint(tmp_path / "adapter", tensors, stem="adapter_model")
        with pytest.raises(ValueError, match=why) as caught:
            adapters.load_adapter(model, tmp_path / "adapter")
        assert "\n" not in str(caught.value)
    assert not lora.adapted_layers(model) and all(parameter.requires_grad for parameter in model.parameters())


def test_what_is_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this model has no adapters"):
        af.save(model_of("bert"), tmp_path / "adapter", format="peft")
    af.save(model_of("bert"), tmp_path / "plain")
    with pytest.raises(ValueError, match="base= is only for adapters"):
        af.load(tmp_path / "plain", base=tmp_path / "plain")
