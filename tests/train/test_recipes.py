"""Recipes on their real data, in a small form: they run from end to end, and something is learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.data import Arrays, Data, First, TrainedBPE
from anyformer.objectives.match import caption
from anyformer.recipes import recipe
from anyformer.specs.codec import override
from anyformer.specs.part import walk
from anyformer.train.progress import Metrics, read_metrics
from anyformer.train.run import Batch, Pretrained
from anyformer.train.start import load_pretrained, setup
from anyformer.train.trainer import Callback, Trainer
from anyformer.transforms.lora import LoRA
from anyformer.weights.io import Checkpoint

SCRATCH: list[Any] = ["multi30k-en-de", "shakespeare"]
SCRATCH += ["fashion-mnist", "fashion-dit"]
# not slow: the same objectives from a published model (below), and other classifiers on the same data
SCRATCH += [pytest.param(name, marks=pytest.mark.slow) for name in (
    "squad-scratch", "sst2-scratch", "wnut17-scratch", "fashion-mnist-swin", "fashion-mnist-resnet")]  # fmt: skip
PARTS = ("train", "test")


def small(name: str, data: Path, **more: Any) -> Any:
    """Return the run with little data, all of it in every step, a small vocabulary and one layer."""
    run = recipe(name, str(data))
    if "fashion" in name:  # only a part of the data is here
        file = str(data / "fashion_mnist_part" / "fashion_mnist_12k_2k.npz")
        train, valid = (Arrays(path=file, fields={"image": f"x_{part}", "label": f"y_{part}"}) for part in PARTS)
        run = run.replace(data=Data(train=train, valid=valid), precision="fp32")
    changes: dict[str, Any] = {
        "steps": 12, "evaluate.every": 12, "evaluate.batches": 2, "evaluate.sample": None, "keep.every": 12,
        "ema": None,
        "data.train": First(source=run.data.train, count=8), "data.valid": First(source=run.data.valid, count=4),
        "data.test": None, "batch": Batch(examples=8, micro=4), "schedule.warmup": 2, **more,
    }  # fmt: skip
    changes |= {"vocabulary.size": 600} if run.vocabulary is not None and run.vocabulary.size is not None else {}
    changes |= {f"{path}.depth": 1 for path, part in walk(run) if hasattr(part, "depth")}
    changes |= {"objective.stride": 16, "objective.length": 96} if "squad" in name else {}
    if name == "fashion-dit":  # fewer patches
        places = {"rows": 7, "columns": 7}
        changes |= {f"model.embedding.image.position.{side}": count for side, count in places.items()}
        changes |= {"model.embedding.image.patch_size": (4, 4), "model.head.patch_size": (4, 4), "precision": "fp32"}
    changes |= {"optimizer.lr": 2e-3} if name.endswith("scratch") else {}
    changes |= {"model.embedding.layers.0.stride": 2} if "resnet" in name else {}  # a quarter of the work
    return override(run, changes)


@pytest.mark.parametrize("name", SCRATCH)
def test_from_scratch_on_real_data(name: str, tmp_path: Path, shared_data: Path) -> None:
    torch.set_num_threads(1)
    trainer = setup(small(name, shared_data), tmp_path, callbacks=[Metrics()]).fit()
    losses = [line["loss"] for line in read_metrics(tmp_path) if "loss" in line]
    assert len(losses) == 12 and min(losses[-3:]) < 0.95 * losses[0], losses
    again = af.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), trainer.model.state_dict().values()))


# -- sound


def heard(name: str, data: Path, strings: int, **more: Any) -> Any:
    """Return the run on a few strings, all of them in every step."""
    run = recipe(name, str(data))
    changes = {
        "data.train.count": strings, "data.valid.count": strings, "data.test": None, "batch": Batch(examples=strings),
        "evaluate.metrics": (), "evaluate.every": 100, "keep.every": 100, "schedule.warmup": 5, **more,
    }  # fmt: skip
    return override(run, changes)


@pytest.mark.parametrize("name", ["digits", pytest.param("digits-seq2seq", marks=pytest.mark.slow)])
def test_a_conformer_hears_a_handful_of_spoken_digits(name: str, tmp_path: Path, shared_data: Path) -> None:
    """A few recordings are memorized, and transcribed correctly from a file."""
    torch.set_num_threads(1)
    run = heard(name, shared_data, 4, **{
        "data.train.least": 3, "data.train.most": 3, "model.encoder.depth": 1, "model.embedding.width": 8,
        "model.embedding.augment": None, "objective.speed": 0.0, "objective.noise": 0.0, "steps": 40,
        "optimizer.lr": 3e-3, "data.valid": None,
    })  # fmt: skip
    trainer = setup(run, tmp_path / "run").fit()
    assert trainer.last is not None and trainer.last.loss < 0.3
    rows = [row.example for row in run.data.train.rows(("audio", "text"))]
    transcripts = af.tasks.transcribe(tmp_path / "run", [{"audio": (row["audio"], row["rate"])} for row in rows])
    assert transcripts == [row["text"] for row in rows] and all(len(text.split()) == 3 for text in transcripts)


@pytest.mark.slow
def test_sound_alone_and_then_words(tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyformer.recipes import digits_wav2vec

    torch.set_num_threads(1)
    little = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 48, "conv_dim": [16, 16, 24, 24, 24]}
    monkeypatch.setattr(digits_wav2vec, "CONFIG", {**digits_wav2vec.CONFIG, **little})
    first = heard("digits-wav2vec", shared_data, 3, **{"steps": 12, "optimizer.lr": 3e-3})
    learnt = setup(first, tmp_path / "sound", callbacks=[Metrics()]).fit()
    losses = [line["loss"] for line in read_metrics(tmp_path / "sound") if "loss" in line]
    assert len(losses) == 12 and min(losses[-3:]) < losses[0] - 0.05, losses
    assert learnt.model.head.quantizer.temperature == pytest.approx(2 * 0.9995**11)
    then = {"model.path": str(tmp_path / "sound"), "steps": 6}
    trainer = setup(heard("digits-wav2vec-tenth", shared_data, 3, **then), tmp_path / "words").fit()
    stem = "embedding.stem.convolutions.0.weight"
    before, after = learnt.model.state_dict(), trainer.model.state_dict()
    assert torch.equal(before[stem], after[stem]), "the feature encoder is frozen"
    moved = "encoder.layers.0.attention.op.q.weight"
    assert 0 < float((before[moved] - after[moved]).abs().max()) < 0.02 and trainer.model.head.out.out_features == 12
    labels = [run.data.train.source for run in (first, trainer.run)]
    known = [{row.example["audio"].tobytes() for row in source.rows(())} for source in labels]
    test = {row.example["audio"].tobytes() for row in recipe("digits", str(shared_data)).data.test.source.rows(())}
    assert [len(each) for each in (*known, test)] == [2580, 260, 300] and known[1] < known[0]
    assert not known[0] & test, "nothing of the official test is learnt from, with labels or without"


@pytest.mark.slow
def test_garments_are_squeezed_into_codes_and_drawn_by_captions(tmp_path: Path, shared_data: Path) -> None:
    torch.set_num_threads(1)
    narrow = {"model.embedding.widths": (8, 8, 16), "model.image_decoder.widths": (16, 8, 8)}
    squeeze = small("fashion-vae", shared_data, **narrow)
    setup(squeeze, tmp_path / "vae", callbacks=[Metrics()]).fit()
    captions = recipe("fashion-dalle", str(shared_data)).data.train
    parts = {f"data.{part}": captions.replace(source=getattr(squeeze.data, part)) for part in ("train", "valid")}
    run = small("fashion-dalle", shared_data, **{"objective.vae": str(tmp_path / "vae")}, **parts)
    run = override(run, {"vocabulary.size": 300})
    setup(run, tmp_path / "dalle", callbacks=[Metrics()]).fit()
    for name in ("vae", "dalle"):
        losses = [line["loss"] for line in read_metrics(tmp_path / name) if "loss" in line]
        assert len(losses) == 12 and min(losses[-3:]) < 0.95 * losses[0], losses
    rows = af.tasks.draw(tmp_path / "dalle", ["bag", "a picture of an ankle boot"], out=None, count=2)
    assert [row["pictures"].shape for row in rows] == [(2, 28, 28, 1)] * 2
    first = next(run.data.train.rows(("text",))).example
    assert first["label"] == 9 and first["text"][2] == "a picture of an ankle boot"


@pytest.mark.slow
def test_garments_are_squeezed_into_numbers_and_drawn_out_of_noise(tmp_path: Path, shared_data: Path) -> None:
    torch.set_num_threads(1)
    narrow = {"model.embedding.widths": (8, 8, 16), "model.image_decoder.widths": (16, 8, 8)}
    setup(small("fashion-kl", shared_data, **narrow), tmp_path / "vae", callbacks=[Metrics()]).fit()
    run = small("fashion-latent-dit", shared_data, **{"objective.vae": str(tmp_path / "vae")})
    setup(run, tmp_path / "dit", callbacks=[Metrics()]).fit()
    for name in ("vae", "dit"):
        losses = [line["loss"] for line in read_metrics(tmp_path / name) if "loss" in line]
        assert len(losses) == 12 and min(losses[-3:]) < 0.95 * losses[0], losses
    rows = af.tasks.draw(tmp_path / "dit", ["bag", "ankle boot"], out=None, count=2, steps=3)
    assert [row["pictures"].shape for row in rows] == [(2, 28, 28, 1)] * 2
    assert float(af.load(af.load(tmp_path / "dit").folder / "vae").latent.square) > 0


def test_emoji_are_drawn_out_of_noise_by_a_text(tmp_path: Path, shared_data: Path) -> None:
    """The text encoder learns with the rest, and another text gives another picture of the same noise."""
    torch.set_num_threads(1)
    run = small("emoji-dit", shared_data, **{"optimizer.lr": 4e-3})
    trainer = setup(run, tmp_path, callbacks=[Metrics()]).fit()
    losses = [line["loss"] for line in read_metrics(tmp_path) if "loss" in line]
    assert len(losses) == 12 and min(losses[-3:]) < 0.95 * losses[0], losses
    fresh, tokens = af.build(trainer.model.spec, seed=run.seed), "embedding.tokens.weight"
    assert not torch.equal(trainer.model.state_dict()[tokens], fresh.state_dict()[tokens])
    assert (fresh.state_dict()["embedding.norm.weight"] == 1).all(), "only tables of embeddings start near 0"
    texts = ["grinning face", "grinning face", "a red heart with an arrow"]
    one, same, other = (row["pictures"] for row in af.tasks.draw(tmp_path, texts, out=None, steps=3))
    assert one.shape == (1, 16, 16, 3) and (one == same).all() and (one != other).any()
    alone = af.tasks.draw(tmp_path, texts[0], out=None, steps=3)["pictures"]
    assert abs(alone.astype(int) - one).max() <= 1, "padding to the longest text changes nothing"


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
    from anyformer.recipes.shared.encoder import vocabulary

    vocabulary().replace(size=300).make(["some words"], folder)
    return folder


def test_a_published_model_with_another_head(published: Path) -> None:
    labels = ("bad", "good", "neither")
    part = Pretrained(path=str(published), architecture="BertForSequenceClassification", labels=labels)
    model, base = load_pretrained(part, seed=0), af.load(published)
    theirs = base.state_dict()
    shared = [name for name in model.state_dict() if not name.startswith("head.")]
    assert len(shared) > 20 and all(torch.equal(model.state_dict()[name], theirs[name]) for name in shared)
    assert model.head.out.out_features == 3 and bool(model.head.out.weight.std() > 0.01)
    assert tuple(model.spec.source["id2label"].values()) == labels
    assert not torch.equal(load_pretrained(part, seed=1).head.out.weight, model.head.out.weight)
    with pytest.raises(ValueError, match="BertForSequenceClasification"):
        load_pretrained(part.replace(architecture="BertForSequenceClasification"), seed=0)


@pytest.mark.parametrize("kind", ["published", "ours"])
def test_a_start_from_t5_with_an_output_matrix_of_its_own_keeps_it(kind: str, tmp_path: Path) -> None:
    """T5 1.1: the config describes tied weights, but the file has both. The exported file is the same."""
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
    af.save(load_pretrained(part, seed=0), tmp_path / "out", format="hf")
    with Checkpoint(tmp_path / "out") as out, Checkpoint(tmp_path / "published") as source:
        assert sorted(out.names) == sorted(source.names) and "lm_head.weight" in out
        assert all(torch.equal(out.read(name), source.read(name)) for name in source.names)


@pytest.mark.parametrize("name", ["sst2", pytest.param("rte", marks=pytest.mark.slow), "wnut17", "squad"])
def test_further_on_real_data(name: str, published: Path, tmp_path: Path, shared_data: Path) -> None:
    torch.set_num_threads(1)
    rate = 2e-2 if name == "rte" else 3e-3  # pairs are hard to learn in so few steps
    run = small(name, shared_data, **{"model.path": str(published), "optimizer.lr": rate})
    trainer = setup(run, tmp_path, callbacks=[Metrics()]).fit()
    losses = [line["loss"] for line in read_metrics(tmp_path) if "loss" in line]
    assert min(losses[-3:]) < 0.97 * losses[0], losses
    assert trainer.tokenizer is not None and (tmp_path / "checkpoints/step-00000012/tokenizer.json").is_file()


@pytest.mark.slow
def test_summaries_of_real_abstracts(tmp_path: Path, shared_data: Path) -> None:
    """Two abstracts are memorized: the summaries are close to the targets and scored with ROUGE."""
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
        def on_step(self, trainer: Trainer, done: Any) -> None:
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
    name = "encoder.layers.0.attention.op.q.weight"  # frozen in training; the saved model includes the adapter
    theirs = af.load(published).state_dict()[name]
    assert torch.equal(whole.model.state_dict()[name], theirs)
    assert not torch.equal(af.load(tmp_path / "whole").state_dict()[name], theirs)


@pytest.mark.parametrize("name", ["shapes", "emoji"])
def test_captions_end_in_their_tokenizer_as_in_training(name: str, tmp_path: Path) -> None:
    """CLIP's text vector is read at the end token: without it, every text would have the vector of its first token."""
    run = recipe(name, str(tmp_path))
    tokenizer = run.vocabulary.replace(size=270).make(["a red star", "a blue ring"] * 20, tmp_path / "tokenizer")
    ids = tokenizer.core.encode("a red star").ids
    assert ids[-1] == tokenizer.eos_token_id and caption("a red star", tokenizer).tolist() == ids


# -- language-specific layers and graphs


def test_languages_have_their_own_layer(tmp_path: Path, shared_data: Path) -> None:
    """TICO-19: the language token of the source chooses the weights of the last encoder layer."""
    torch.set_num_threads(1)
    run = recipe("tico19", str(shared_data))
    pairs = run.data.train.shares[:2]  # from English to French and Spanish
    little = override(run.data.train, {"shares": [
        share.replace(source=override(share.source, {"source": First(source=share.source.source, count=6)}))
        for share in pairs
    ]})  # fmt: skip
    changes = {"steps": 12, "evaluate.every": 12, "evaluate.metrics": (), "keep.every": 12, "ema": None}
    changes |= {"data": Data(train=little), "batch": Batch(examples=8), "vocabulary.size": 600, "schedule.warmup": 2}
    trainer = setup(override(run, changes), tmp_path, callbacks=[Metrics()]).fit()
    losses = [line["loss"] for line in read_metrics(tmp_path) if "loss" in line]
    assert len(losses) == 12 and min(losses[-3:]) < 0.95 * losses[0], losses
    ops = trainer.model.encoder.layers[-1].feedforward.op.op
    fresh = af.build(run.model, seed=run.seed).encoder.layers[-1].feedforward.op.op
    learned = [not torch.equal(a.up.weight, b.up.weight) for a, b in zip(ops, fresh, strict=True)]
    assert learned == [False, True, True, False, False, False], "only French and Spanish are written"


def test_a_graphormer_reads_trees(tmp_path: Path, shared_data: Path) -> None:
    """Without positions in the text, the tree is all that the order of words can be told from."""
    torch.set_num_threads(1)
    trainer = setup(small("ewt-graphormer", shared_data), tmp_path, callbacks=[Metrics()]).fit()
    losses = [line["loss"] for line in read_metrics(tmp_path) if "loss" in line]
    assert len(losses) == 12 and min(losses[-3:]) < 0.95 * losses[0], losses
    objective, tokenizer = trainer.objective, trainer.tokenizer
    chain = {"words": ["a", "dog", "sleeps"], "tags": ["DET", "NOUN", "VERB"], "heads": [2, 3, 0]}
    flat = {**chain, "heads": ["3", "3", "0"]}
    batch = objective.collate([objective.encode(each, tokenizer) for each in (chain, flat)], tokenizer.filler)
    first = [int(token) for token in (batch["labels"][0] >= 0).nonzero()[:, 0]]  # the first token of each word
    words = batch["graph_edges"][:, first][:, :, first]
    assert words[0].tolist() == [[0, 2, 0], [1, 0, 2], [0, 1, 0]]
    assert words[1].tolist() == [
        [0, 0, 2],
        [0, 0, 2],
        [1, 1, 0],
    ]
    with torch.no_grad():
        logits = trainer.model.eval()(**{name: batch[name] for name in ("input_ids", "graph_edges")}).logits
    assert not torch.allclose(logits[0], logits[1], atol=1e-4)
    for heads in ([2, 3], [2, 3, 4], [2, 3, -1]):
        with pytest.raises(ValueError, match="column 'heads' must have a number from 0 to 3 for each of 3 words"):
            objective.encode({**chain, "heads": heads}, tokenizer)
