"""Freezing by address: frozen parameters never change, have no optimizer state, and new parameters are trained."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer import cli
from anyformer.train.run import Pretrained
from anyformer.train.start import make_model, setup
from anyformer.transforms import lora
from anyformer.transforms.freeze import freeze
from anyformer.transforms.lora import LoRA
from tiny import model_of

sys.path.insert(0, str(Path(__file__).parent.parent / "train"))
import runs


def learnt(model: torch.nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_a_pattern_means_all_below_it() -> None:
    model = model_of("gpt2")
    every = learnt(model)
    assert freeze(model, "embedding", "decoder.layers.0", "*.norm.bias") is model
    still = every - learnt(model)
    assert still == {n for n in every if n.startswith(("embedding.", "decoder.layers.0.")) or n.endswith(".norm.bias")}
    assert {"embedding.tokens.weight", "decoder.layers.0.attention.op.q.weight", "decoder.norm.bias"} <= still


@pytest.mark.parametrize(("pattern", "line"), [
    ("embeding", "freeze: no parameter matches 'embeding'; did you mean 'embedding.tokens'"),
    ("transformer.h.0", "freeze: no parameter matches 'transformer.h.0'"),
])  # fmt: skip
def test_nothing_matched(pattern: str, line: str) -> None:
    model = model_of("gpt2")
    with pytest.raises(ValueError, match=line):
        freeze(model, "decoder.norm", pattern)
    assert all(parameter.requires_grad for parameter in model.parameters())  # nothing half done


def test_adapters_and_new_heads_learn_unless_they_are_named() -> None:
    model = lora.apply(model_of("bert"), LoRA(rank=2, also=("head.*", "encoder.layers.1.*")))
    model.fresh = frozenset(name for name, _ in model.named_parameters() if name.startswith("head."))
    before = learnt(model)
    freeze(model, "encoder.layers", "*")
    assert learnt(model) == {name for name in before if "lora_" in name or name.startswith("head.")}
    freeze(model, "head.*", "*.lora_a")
    assert learnt(model) == {name for name in before if name.endswith("lora_b")}


def test_a_run_leaves_it_as_it_was(tmp_path: Path) -> None:
    """Frozen parameters are bit-identical after training, even in fused layers, and have no optimizer state."""
    still = ("embedding", "*.attention.op.q", "decoder.layers.1.feedforward")
    run = runs.run_of(runs.write_texts(tmp_path / "texts"), freeze=still, steps=3)
    before = make_model(run, None).state_dict()
    trainer = setup(run, tmp_path / "run", device="cpu").fit()
    after = trainer.model.state_dict()
    same = {name for name in before if torch.equal(before[name], after[name])}
    frozen = {name for name, parameter in trainer.model.named_parameters() if not parameter.requires_grad}
    assert frozen and same - {"head.out.weight"} == frozen  # the head is tied to the embedding
    assert {name.partition("/")[0] for name in trainer.optimizers.state()} == learnt(trainer.model)
    with pytest.raises(ValueError, match="a different run: freeze: "):
        setup(run.replace(freeze=("embedding",)), tmp_path / "run", resume=True, device="cpu")


def test_with_adapters_and_a_head_that_stands_still(tmp_path: Path) -> None:
    """A frozen new head is saved with the adapter."""
    af.save(model_of("bert"), tmp_path / "base", format="hf")
    part = Pretrained(path=str(tmp_path / "base"), architecture="BertForSequenceClassification", labels=("a", "b"))
    run = runs.run_of(tmp_path, model=part, vocabulary=None, lora=LoRA(rank=2), freeze=("head",))
    model = make_model(run, None)
    assert model.fresh
    model = freeze(lora.apply(model, run.lora), *run.freeze)
    assert learnt(model) and all("lora_" in name for name in learnt(model))
    model.origin = part.path
    af.save(model, tmp_path / "adapter", format="peft")
    ids = torch.tensor([[5, 9, 9, 6]])
    with torch.no_grad():
        assert torch.equal(af.load(tmp_path / "adapter")(input_ids=ids).logits, model.eval()(input_ids=ids).logits)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "shakespeare", "--freeze", "embedding", "--freeze", "*.norm", "--show"]) == 0
    assert json.loads(capsys.readouterr().out)["freeze"] == ["embedding", "*.norm"]
    texts = str(runs.write_texts(tmp_path / "texts"))
    out = ["--out", str(tmp_path / "run"), "--device", "cpu"]
    for pattern, line in (("embeding", "no parameter matches 'embeding'"), ("*", "nothing to train")):
        assert cli.main(["train", "--text", texts, "--freeze", pattern, *out]) == 2
        assert line in capsys.readouterr().err
