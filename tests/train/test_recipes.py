"""Recipes on their real data, in a small form: they run from end to end, and something is learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.codec import override
from anyformer.data import First, TrainedBPE
from anyformer.part import walk
from anyformer.recipes import recipe
from anyformer.train.progress import Metrics, read_metrics
from anyformer.train.run import Batch, Pretrained
from anyformer.train.start import pretrained, setup
from anyformer.train.trainer import Callback, Trainer
from anyformer.transforms.lora import LoRA
from anyformer.weights.io import Checkpoint

SCRATCH = ["multi30k-en-de", "squad-scratch", "sst2-scratch", "wnut17-scratch", "shakespeare", "fashion-mnist"]


def small(name: str, data: Path, **more: Any) -> Any:
    """The same run with little data, all of it in every step, a narrow vocabulary and one layer."""
    run = recipe(name, str(data))
    changes: dict[str, Any] = {
        "steps": 12, "evaluate.every": 12, "evaluate.batches": 2, "evaluate.sample": None, "keep.every": 12,
        "ema": None,
        "data.train": First(source=run.data.train, count=8), "data.valid": First(source=run.data.valid, count=4),
        "data.test": None, "batch": Batch(examples=8, micro=4), "schedule.warmup": 2, **more,
    }  # fmt: skip
    changes |= {"vocabulary.size": 600} if hasattr(run.vocabulary, "size") else {}
    changes |= {f"{path}.depth": 1 for path, part in walk(run) if hasattr(part, "depth")}
    changes |= {"objective.stride": 16, "objective.length": 96} if "squad" in name else {}
    changes |= {"optimizer.lr": 2e-3} if name.endswith("scratch") else {}
    return override(run, changes)


@pytest.mark.parametrize("name", SCRATCH)
def test_from_scratch_on_real_data(name: str, tmp_path: Path, shared_data: Path) -> None:
    torch.set_num_threads(1)
    trainer = setup(small(name, shared_data), tmp_path, callbacks=[Metrics()]).fit()
    losses = [line["loss"] for line in read_metrics(tmp_path) if "loss" in line]
    assert len(losses) == 12 and min(losses[-3:]) < 0.95 * losses[0], losses
    again = af.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), trainer.model.state_dict().values()))


def test_garments_are_squeezed_into_codes_and_drawn_by_captions(tmp_path: Path, shared_data: Path) -> None:
    torch.set_num_threads(1)
    narrow = {"model.embedding.widths": (8, 8, 16), "model.painter.widths": (16, 8, 8), "precision": "fp32"}
    setup(small("fashion-vae", shared_data, **narrow), tmp_path / "vae", callbacks=[Metrics()]).fit()
    run = small("fashion-dalle", shared_data, precision="fp32", **{"objective.vae": str(tmp_path / "vae")})
    setup(override(run, {"vocabulary.size": 300}), tmp_path / "dalle", callbacks=[Metrics()]).fit()
    for name in ("vae", "dalle"):
        losses = [line["loss"] for line in read_metrics(tmp_path / name) if "loss" in line]
        assert len(losses) == 12 and min(losses[-3:]) < 0.95 * losses[0], losses
    rows = af.tasks.draw(tmp_path / "dalle", ["bag", "a picture of an ankle boot"], out=None, count=2)
    assert [row["pictures"].shape for row in rows] == [(2, 28, 28, 1)] * 2
    first = next(run.data.train.rows(("text",))).example
    assert first["label"] == 9 and first["text"][2] == "a picture of an ankle boot"


# -- further from a published model


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT as transformers writes it, with random weights and a vocabulary of bytes."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=600, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    torch.manual_seed(0)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    from anyformer.recipes._encoder import vocabulary

    vocabulary().replace(size=300).make(["some words"], folder)
    return folder


def test_a_published_model_with_another_head(published: Path) -> None:
    labels = ("bad", "good", "neither")
    part = Pretrained(path=str(published), architecture="BertForSequenceClassification", labels=labels)
    model, base = pretrained(part, seed=0), af.load(published)
    theirs = base.state_dict()
    shared = [name for name in model.state_dict() if not name.startswith("head.")]
    assert len(shared) > 20 and all(torch.equal(model.state_dict()[name], theirs[name]) for name in shared)
    assert model.head.out.out_features == 3 and bool(model.head.out.weight.std() > 0.01)
    assert tuple(model.spec.source["id2label"].values()) == labels
    assert not torch.equal(pretrained(part, seed=1).head.out.weight, model.head.out.weight)
    with pytest.raises(ValueError, match="BertForSequenceClasification"):
        pretrained(part.replace(architecture="BertForSequenceClasification"), seed=0)


@pytest.mark.parametrize("kind", ["published", "ours"])
def test_a_start_from_t5_with_an_output_matrix_of_its_own_keeps_it(kind: str, tmp_path: Path) -> None:
    """T5 1.1: the config describes a tied matrix, and the file has both. Exported again it is the same file."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 40, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(**sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    torch.manual_seed(0)
    theirs = transformers.T5ForConditionalGeneration(config)
    theirs.lm_head.weight = torch.nn.Parameter(torch.randn(40, 16))
    theirs.save_pretrained(tmp_path / "published")
    if kind == "ours":
        af.save(af.load(tmp_path / "published"), tmp_path / "ours")
    part = Pretrained(path=str(tmp_path / kind), architecture="T5ForConditionalGeneration")
    af.save(pretrained(part, seed=0), tmp_path / "out", format="hf")
    with Checkpoint(tmp_path / "out") as out, Checkpoint(tmp_path / "published") as source:
        assert sorted(out.names) == sorted(source.names) and "lm_head.weight" in out
        assert all(torch.equal(out.read(name), source.read(name)) for name in source.names)


@pytest.mark.parametrize("name", ["sst2", "rte", "wnut17", "squad"])
def test_further_on_real_data(name: str, published: Path, tmp_path: Path, shared_data: Path) -> None:
    torch.set_num_threads(1)
    rate = 2e-2 if name == "rte" else 3e-3  # pairs from which there is little to learn in so few steps
    run = small(name, shared_data, **{"model.path": str(published), "optimizer.lr": rate})
    trainer = setup(run, tmp_path, callbacks=[Metrics()]).fit()
    losses = [line["loss"] for line in read_metrics(tmp_path) if "loss" in line]
    assert min(losses[-3:]) < 0.97 * losses[0], losses
    assert trainer.tokenizer is not None and (tmp_path / "checkpoints/step-00000012/tokenizer.json").is_file()


def test_summaries_of_real_abstracts(tmp_path: Path, shared_data: Path) -> None:
    """Of two abstracts, learnt by heart: what is written is near what was learnt, and each is scored with ROUGE."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("rouge_score")
    torch.set_num_threads(1)
    sizes = {"d_model": 48, "vocab_size": 400, "max_position_embeddings": 64, "dropout": 0.0, "init_std": 0.1}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 1, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 64}
    ends = {"eos_token_id": 0, "pad_token_id": 1, "bos_token_id": 0, "decoder_start_token_id": 0}
    config = transformers.BartConfig(**sizes, **ends)
    transformers.BartForConditionalGeneration(config).save_pretrained(tmp_path / "bart")
    special = {"eos_token": "</s>", "pad_token": "<pad>"}
    TrainedBPE(size=400, special=special, end="eos_token").make(["abstracts"], tmp_path / "bart")
    run = small("scitldr", shared_data, **{
        "model.path": str(tmp_path / "bart"), "steps": 60, "evaluate.every": 60, "keep.every": 60, "optimizer.lr": 5e-3,
        "objective.length": 48, "objective.target_length": 14, "objective.smoothing": 0.0, "evaluate.num_beams": 1,
    })  # fmt: skip
    few = First(source=run.data.train.source, count=2)
    trainer = setup(override(run, {"data.train": few, "data.valid": few}), tmp_path / "run").fit()
    assert {"rouge1", "rouge2", "rougeL"} < {*trainer.scores} and trainer.scores["rougeL"] > 5, trainer.scores
    assert trainer.best == -trainer.scores["rougeL"]


def test_adapters_are_trained_alone_and_resumed(published: Path, tmp_path: Path, shared_data: Path) -> None:
    torch.set_num_threads(1)
    changes = {"model.path": str(published), "lora": LoRA(rank=2, also=("head.*",)), "steps": 6, "optimizer.lr": 1e-2}
    run = small("sst2", shared_data, **changes)

    class Enough(Callback):
        def stepped(self, trainer: Trainer, done: Any) -> None:
            if done.step == 3:
                trainer.stop("enough")

    whole = setup(run, tmp_path / "whole").fit()
    learnt = [name for name, p in whole.model.named_parameters() if p.requires_grad]
    assert learnt and all("lora_" in name or name.startswith("head.") for name in learnt)
    setup(run, tmp_path / "broken", callbacks=[Enough()]).fit()
    resumed = setup(run, tmp_path / "broken", resume=True)
    assert resumed.fit().step == 6
    pairs = zip(whole.model.state_dict().items(), resumed.model.state_dict().values())
    assert all(torch.equal(a, b) for (_, a), b in pairs)
    name = "encoder.layers.0.attention.op.q.weight"  # stands still while it is trained, and what opens has the adapter
    theirs = af.load(published).state_dict()[name]
    assert torch.equal(whole.model.state_dict()[name], theirs)
    assert not torch.equal(af.load(tmp_path / "whole").state_dict()[name], theirs)
