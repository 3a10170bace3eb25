"""Audio: transcription with CTC and with a decoder, codes of masked frames, and joined recordings as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer import families
from anyformer.data import Data, JoinedRecordings, Loader, Plan, Recordings, Where, Words, prepare
from anyformer.evaluate import Evaluation
from anyformer.inputs.audio_features import AudioProcessor
from anyformer.objectives.contrast import Contrast
from anyformer.objectives.ctc import CTC
from anyformer.objectives.objective import Predictor
from anyformer.objectives.transcribe import Transcribe
from anyformer.specs.codec import decode, encode

RATE = 2000
HEARD = CTC(rate=RATE, form="bank", channels=12, window=50, hop=20)
CONFORMER = {
    "vocab_size": 5, "pad_token_id": 0, "encoder_config": {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
        "conv_kernel_size": 3, "subsampling_factor": 2, "subsampling_conv_channels": 4, "num_mel_bins": 12,
        "layerdrop": 0.0, "initializer_range": 0.2,
    },
}  # fmt: skip
WAVES = {
    "vocab_size": 5, "pad_token_id": 0, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 24, "conv_dim": [8, 12], "conv_kernel": [10, 4], "conv_stride": [5, 4],
    "feat_extract_norm": "layer", "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    "do_stable_layer_norm": True, "layerdrop": 0.0, "num_negatives": 7, "num_codevectors_per_group": 8,
    "codevector_dim": 12, "proj_codevector_dim": 10,
}  # fmt: skip
SOUND = Contrast(rate=RATE, hop=20, reach=25, negatives=7, span=3)


def model(family: str = "parakeet_ctc", config: Any = CONFORMER, **changes: Any) -> Any:
    return af.build(families.find(family).read({**config, **changes}), seed=0).eval()


@pytest.fixture
def source(tmp_path: Path) -> Recordings:
    """Recordings of high and low tones by two speakers."""
    random, lengths = np.random.default_rng(0), [300, 420, 350, 500, 310, 444, 390, 365]
    pitch = [(200, 600)[i % 2] * (1, 1.2)[i // 4] for i in range(8)]
    tones = [np.sin(2 * np.pi * p * np.arange(n) / RATE) + 0.1 * random.normal(size=n) for p, n in zip(pitch, lengths)]
    np.savez(
        tmp_path / "some.npz", audio=(8000 * np.concatenate(tones)).astype(np.int16), rate=RATE,
        offsets=np.cumsum([0, *lengths]), label=np.arange(8) % 2, speaker=np.array(["a", "b"])[np.arange(8) // 4],
        index=np.arange(8) % 4,
    )  # fmt: skip
    return Recordings(path=str(tmp_path / "some.npz"), fields=("speaker", "index"), texts=("low", "high"))


@pytest.fixture
def words(source: Recordings, tmp_path: Path) -> Any:
    return Words().make(["low high"], tmp_path / "words")


# -- data


def test_recordings_are_joined_as_one_speaker_says_them(source: Recordings) -> None:
    some = Where(source=source, column="index", least=1)
    joined = JoinedRecordings(source=some, count=40, least=2, most=4, alike="speaker", seed=3)
    assert decode(json.loads(json.dumps(encode(joined)))) == joined
    known = [row.example for row in some.rows(())]
    rows = [row.example for row in joined.rows(("audio", "text"))]
    assert len(known) == 6 and {example["index"] for example in known} == {1, 2, 3} and len(rows) == 40
    by = {example["audio"].tobytes(): example for example in known}
    for row in rows:
        rest, parts = row["audio"].tobytes(), []
        while rest:
            first = next(start for start in by if rest.startswith(start))
            parts, rest = [*parts, by[first]], rest[len(first) :]
        assert row["text"] == " ".join(part["text"] for part in parts) and row["rate"] == RATE
        assert 2 <= len(parts) <= 4 and len({part["speaker"] for part in parts}) == 1
    assert {len(row["text"].split()) for row in rows} == {2, 3, 4}
    again, other = ([r.example["text"] for r in one.rows(("audio",))] for one in (joined, joined.replace(seed=4)))
    assert again == [row["text"] for row in rows] != other


def test_bad_recordings_are_told(source: Recordings, tmp_path: Path) -> None:
    with np.load(source.path) as stored:
        good = dict(stored)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"offsets": good["offsets"][:-1]}, "offsets must rise"), ({"label": good["label"][1:]}, "label"),
        ({"label": good["label"] + 1}, "labels up to 2, but only 2 texts"), ({"rate": None}, "no array 'rate'"),
        ({"audio": good["audio"][None]}, "audio .* must be one-dimensional"),
    ]  # fmt: skip
    for changes, match in wrong:
        path = tmp_path / "bad.npz"
        np.savez(path, **{name: value for name, value in {**good, **changes}.items() if value is not None})
        with pytest.raises(ValueError, match=match):
            list(source.replace(path=str(path)).raw())
    with pytest.raises(ValueError, match="no column 'indx'"):
        list(Where(source=source, column="indx").rows(()))


# -- transcription


@pytest.mark.parametrize("form", ["bank", "values"])
def test_ctc_is_torchs_and_micro_batches_are_one(form: str, source: Recordings, words: Any, tmp_path: Path) -> None:
    net = model() if form == "bank" else model("wav2vec2", WAVES, architectures=["Wav2Vec2ForCTC"])
    objective = HEARD.replace(form=form)
    assert decode(json.loads(json.dumps(encode(objective)))) == objective
    joined = JoinedRecordings(source=source, count=12, least=1, most=3)
    split = prepare(Data(train=joined), objective, words, tmp_path / "data").train
    assert split.bad == 0 and split.fields["samples"].parts[0].dtype == np.int16
    plan = Plan(split, examples=8)
    (batch,) = Loader(plan, objective, pin=False).make(0).batches
    pieces = Loader(plan, objective, micro=3, pin=False).make(0).batches
    found = objective.losses(objective.module(net), batch)["loss"]
    heard = {name: value for name, value in batch.items() if name != "labels"}
    logits = net(**heard).logits
    frames = torch.tensor([net.spec.embedding.vectors(int(n)) for n in heard["attention_mask"].sum(-1)])
    lengths = (batch["labels"] >= 0).sum(-1)
    expected = F.ctc_loss(
        logits.log_softmax(-1).transpose(0, 1), batch["labels"].clamp(min=0), frames, lengths, reduction="sum"
    )
    assert len({*lengths.tolist()}) > 1 and torch.allclose(found, expected, rtol=1e-5)
    assert objective.weights(batch) == {"loss": float(lengths.sum())}
    assert torch.allclose(sum(objective.losses(net, piece)["loss"] for piece in pieces), found, rtol=1e-4)
    # training uses the same features as the saved settings
    objective.write_settings(tmp_path / "settings")
    read = AudioProcessor.load(tmp_path / "settings")
    assert read == objective.processor
    example = next(iter(joined.rows(("audio", "text")))).example
    record = split.record(0)
    once, theirs = objective.collate([record], 0), read((example["audio"], RATE))
    assert words.decode(record["labels"]) == example["text"]
    assert all(torch.allclose(once[name].float(), theirs[name].float(), atol=1e-4) for name in theirs)


def test_chance_changes_speed_and_hiss(source: Recordings, words: Any) -> None:
    example: Any = next(source.raw()).example
    record = HEARD.encode(example, words)
    plain = record["samples"].astype(np.float32) / 32768
    assert HEARD.vary(record, np.random.default_rng(0)) is record
    quick = HEARD.replace(speed=0.2)
    seen = [quick.vary(record, np.random.default_rng(i))["samples"] for i in range(40)]
    sizes = [len(each) / len(plain) for each in seen]
    assert 1 / 1.2 - 0.01 <= min(sizes) < 0.9 and 1.1 < max(sizes) <= 1 / 0.8 + 0.01
    for each in seen[:5]:  # the same tone at another speed: the peak of its spectrum moves with its length
        tops = [np.abs(np.fft.rfft(wave)).argmax() for wave in (plain, each)]
        assert abs(tops[0] - tops[1]) <= 1
    hiss = HEARD.replace(noise=0.5)
    added = [hiss.vary(record, np.random.default_rng(i))["samples"] - plain for i in range(40)]
    ratios = [float(each.std() / np.sqrt((plain**2).mean())) for each in added]
    assert max(ratios) < 0.55 and max(ratios) > 0.4 and min(ratios) < 0.1
    one, two = (hiss.vary(record, np.random.default_rng(7))["samples"] for _ in range(2))
    assert (one == two).all()


def test_a_decoder_writes_what_it_hears(source: Recordings, tmp_path: Path) -> None:
    tokenizer = Words(special={"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>"})
    words = tokenizer.make(["low high"], tmp_path / "words")
    objective = Transcribe(rate=RATE, form="mel", channels=10, window=40, hop=20, seconds=1, prompt="<s>", speed=0.1)
    whisper = {
        "vocab_size": 6, "num_mel_bins": 10, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
        "max_source_positions": 50, "max_target_positions": 8, "pad_token_id": 0, "eos_token_id": 1,
        "bos_token_id": 3, "decoder_start_token_id": 1,
    }  # fmt: skip
    net = model("whisper", whisper)
    joined = JoinedRecordings(source=source, count=6, least=1, most=2)
    split = prepare(Data(train=joined), objective, words, tmp_path / "data", 8).train
    (batch,) = Loader(Plan(split, examples=6), objective, pin=False).make(0).batches
    assert batch["input_features"].shape == (6, 10, 100) and (batch["labels"][:, 0] == 3).all()
    out = objective.module(net)(input_features=batch["input_features"], labels=batch["labels"])
    expected = out.loss * (batch["labels"] >= 0).sum()
    assert torch.allclose(objective.losses(net, batch)["loss"], expected, rtol=1e-5)
    found = Evaluation(joined, objective, words, ()).ask(Predictor(net, words))
    heard = objective.collate([split.record(0)], 0)["input_features"]
    ids = af.generate(net, input_features=heard, max_new_tokens=2 * int((batch["labels"] >= 0).sum(-1).max()))
    assert found.predicted[0] == words.decode(ids[0], skip_special_tokens=True) and len(found.wanted) == 6
    with pytest.raises(ValueError, match="the tokenizer has no end token"):
        example: Any = next(source.raw()).example
        objective.encode(example, Words().make(["low"], tmp_path / "endless"))


# -- pretraining without labels


def test_hidden_frames_and_their_negatives(source: Recordings, tmp_path: Path) -> None:
    net = model("wav2vec2", WAVES, architectures=["Wav2Vec2ForPreTraining"])
    assert decode(json.loads(json.dumps(encode(SOUND)))) == SOUND
    split = prepare(Data(train=source), SOUND, None, tmp_path / "data").train
    plan = Plan(split, examples=8)
    (batch,) = Loader(plan, SOUND, pin=False).make(0).batches
    hidden, others = batch["mask_time_indices"], batch["sampled_negative_indices"]
    B, T = hidden.shape
    frames = torch.tensor([net.spec.embedding.vectors(int(n)) for n in batch["attention_mask"].sum(-1)])
    assert len({*frames.tolist()}) > 1 and others.shape == (B, T, 7)
    for i in range(B):
        assert not hidden[i, frames[i] :].any()  # padding
        runs = "".join("x" if each else " " for each in hidden[i].tolist()).split()
        assert all(len(run) >= SOUND.span for run in runs) and 0.2 < float(hidden[i].sum() / frames[i]) <= 1
        mine = others[i, hidden[i]] - i * T
        assert hidden[i][mine].all() and (mine != hidden[i].nonzero()).all(), "others, hidden, of the same row"
        assert len(mine.unique()) > 2
    # the mask of a row does not depend on its batch, and the terms add up
    found = SOUND.losses(SOUND.module(net), batch)
    pieces = Loader(plan, SOUND, micro=3, pin=False).make(0).batches
    counts = [SOUND.weights(piece) for piece in pieces]
    assert SOUND.weights(batch) == {name: sum(count[name] for count in counts) for name in counts[0]}
    parts = sum(SOUND.losses(net, piece)["contrast"] for piece in pieces)
    assert torch.allclose(parts, found["contrast"], rtol=1e-4)
    out = net(**batch)
    assert torch.allclose(found["contrast"] + found["diversity"], out.loss, rtol=1e-5)
    assert torch.allclose(found["contrast"], out.contrastive_loss, rtol=1e-5)
    # the temperature of the codes falls
    cool = SOUND.replace(cooling=0.9)
    warm = []
    for step in (0, 3, 1000):
        cool.before_step(net, step)
        warm.append(net.head.quantizer.temperature)
    assert warm == pytest.approx([2.0, 2 * 0.9**3, 0.5])


@pytest.mark.parametrize(("window", "wide"), [(50, 64), (64, 64), (65, 128)])
def test_a_transform_is_the_least_power_of_two(window: int, wide: int) -> None:
    assert HEARD.replace(window=window).processor.n_fft == wide
    assert HEARD.replace(form="mel", window=window, seconds=1).processor.n_fft == window


def test_clear_errors(source: Recordings, words: Any) -> None:
    waves = model("wav2vec2", WAVES, architectures=["Wav2Vec2ForCTC"])
    codes = model("wav2vec2", WAVES, architectures=["Wav2Vec2ForPreTraining"])
    for objective, net, match in (
        (HEARD, waves, "makes input_features, but the model takes input_values"),
        (HEARD.replace(channels=13), model(), "channels is 13, but the model reads .* 12"), (HEARD, codes, "CTC"),
        (SOUND.replace(hop=10), codes, "Contrast.hop is 10, but the model's is 20"),
        (SOUND.replace(negatives=3), codes, "negatives"), (SOUND, waves, "ContrastHead"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            objective.module(net)
    wrong: tuple[tuple[Any, dict[str, Any], str], ...] = (
        (HEARD, {"speed": 1.0}, "speed"), (HEARD, {"noise": -1.0}, "noise"), (HEARD, {"rate": 0}, "sampling_rate"),
        (SOUND, {"form": "mel"}, "samples"), (SOUND, {"span": 1}, "span"),
        (SOUND, {"temperatures": (0.5, 2.0)}, "temperatures must be positive and must not rise"),
    )  # fmt: skip
    for objective, changes, match in wrong:
        with pytest.raises(ValueError, match=match):
            objective.replace(**changes)
    example: Any = next(source.raw()).example
    nan = np.full(400, np.nan, np.float32)
    for objective, given, match in (
        (HEARD, {"audio": nan}, "not a finite number"),
        (HEARD, {"audio": example["audio"][:20]}, "less than two frames"),
        (SOUND, {"audio": example["audio"][:90]}, "has 4 frames; spans of"), (HEARD, {"rate": None}, "need their rate"),
        (HEARD, {"text": 3}, "not text"),
        (HEARD.replace(form="mel", seconds=1), {"audio": np.ones(2100, np.float32)}, "the limit is 1"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            objective.encode({**example, **given}, words)


# -- end to end


def test_tones_are_learnt_by_heart_and_transcribed(
    source: Recordings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anyformer.tasks import long_audio
    from anyformer.train.optim import AdamW
    from anyformer.train.run import Batch, Evaluate, Run
    from anyformer.train.start import setup

    joined = JoinedRecordings(source=source, count=16, least=1, most=3, alike="speaker")
    run = Run(
        name="tones", model=families.find("parakeet_ctc").read(CONFORMER), vocabulary=Words(),
        data=Data(train=joined, valid=joined), objective=HEARD, optimizer=AdamW(lr=1e-2), batch=Batch(examples=16),
        steps=100, evaluate=Evaluate(every=100),
    )  # fmt: skip
    torch.set_num_threads(1)
    trainer = setup(run, tmp_path / "run").fit()
    assert trainer.scores["loss"] < 0.2, trainer.scores
    rows = [row.example for row in joined.rows(("audio", "text"))]
    transcripts = af.tasks.transcribe(tmp_path / "run", [{"audio": (row["audio"], RATE)} for row in rows])
    assert sum(a == row["text"] for a, row in zip(transcripts, rows)) >= 14, transcripts
    evaluation = Evaluation(joined, HEARD, trainer.tokenizer, ())
    assert evaluation.ask(Predictor(trainer.model.eval(), trainer.tokenizer, size=5)).predicted == transcripts
    # silence gives some text or none; audio that is too short or not finite raises a one-line error
    assert isinstance(af.tasks.transcribe(tmp_path / "run", {"audio": (np.zeros(2000, np.float32), RATE)}), str)
    for wrong, match in ((np.zeros(30, np.float32), "30 samples are less than"), (np.full(900, np.nan), "finite")):
        with pytest.raises(ValueError, match=match):
            af.tasks.transcribe(tmp_path / "run", {"audio": (wrong, RATE)})
    # a long recording has each frame of its windows once
    long = np.concatenate([row["audio"] for row in rows])
    model, read = af.load(tmp_path / "run"), HEARD.processor
    monkeypatch.setattr(long_audio, "WINDOW", 3)
    monkeypatch.setattr(long_audio, "OVERLAP", 1)
    found = list(long_audio.frames(model, read, (long, RATE)))
    assert len(found) > 2 and sum(map(len, found)) == model.spec.embedding.vectors(len(long) // read.hop_length)


@pytest.mark.slow
def test_a_decoder_writes_what_a_conformer_hears(
    source: Recordings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train, evaluate, and transcribe a long recording, which is split at quiet positions."""
    from anyformer.tasks import long_audio
    from anyformer.train.optim import AdamW
    from anyformer.train.run import Batch, Evaluate, Run
    from anyformer.train.start import setup

    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {
        "vocab_size": 5, "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24,
        "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "conv_kernel_size": 4,
        "num_mel_bins": 12, "subsampling_channels": 4, "max_target_positions": 12, "eos_token_id": 1, "dropout": 0.0,
        "attention_dropout": 0.0, "activation_dropout": 0.0,
    }  # fmt: skip
    joined = JoinedRecordings(source=source, count=16, least=1, most=3, alike="speaker")
    objective = Transcribe(rate=RATE, form="bank", channels=12, window=50, hop=20)
    run = Run(
        name="tones", model=families.find("conformer").read(config), vocabulary=Words(special=special),
        data=Data(train=joined, valid=joined), objective=objective, optimizer=AdamW(lr=1e-2),
        batch=Batch(examples=16), steps=120, evaluate=Evaluate(every=120),
    )  # fmt: skip
    torch.set_num_threads(1)
    trainer = setup(run, tmp_path / "run").fit()
    assert trainer.scores["loss"] < 0.1, trainer.scores
    rows = [row.example for row in joined.rows(("audio", "text"))]
    for beams in (1, 3):
        transcripts = af.tasks.transcribe(
            tmp_path / "run", [{"audio": (row["audio"], RATE)} for row in rows], num_beams=beams
        )
        assert sum(a == row["text"] for a, row in zip(transcripts, rows)) >= 15, transcripts
    evaluation = Evaluation(joined, objective, trainer.tokenizer, ())
    assert (
        evaluation.ask(Predictor(trainer.model.eval(), trainer.tokenizer, size=5, num_beams=3)).predicted == transcripts
    )
    gap = np.zeros(RATE // 4, np.int16)
    spaced = np.concatenate([np.concatenate((gap, row["audio"], gap)) for row in rows[:5]])
    monkeypatch.setattr(long_audio, "WINDOW", 1)
    monkeypatch.setattr(long_audio, "OVERLAP", 1)
    parts = list(long_audio.pieces(objective.processor, (spaced, RATE)))
    assert 10 > len(parts) > 3 and max(map(len, parts)) < RATE + 40 and (np.concatenate(parts) * 32768 == spaced).all()
    assert all(abs(part[0]) < 1e-6 and abs(part[-1]) < 1e-6 for part in parts), "cut where it is quiet"
    heard = af.tasks.transcribe(tmp_path / "run", {"audio": (spaced, RATE)})
    assert heard == " ".join(af.tasks.transcribe(tmp_path / "run", {"audio": (part, RATE)}) for part in parts).strip()
    with pytest.raises(ValueError, match="timestamps: this model writes only text"):
        af.tasks.transcribe(tmp_path / "run", {"audio": (spaced, RATE)}, timestamps=True)
    with pytest.raises(ValueError, match="30 samples are less than two frames of 20"):
        af.tasks.transcribe(tmp_path / "run", {"audio": (spaced[:30], RATE)})
    with pytest.raises(ValueError, match="windows of any length, and this model reads 12 channels"):
        af.tasks.detect_language(tmp_path / "run", {"audio": (spaced, RATE)})
