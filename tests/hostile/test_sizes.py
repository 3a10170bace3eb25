"""Enormous sizes in files and settings: each is used, or refused in one line, within the prisoner's time and memory."""

from __future__ import annotations

import functools
import gzip
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prisoner import results

import anyformer as af
from anyformer import cli, families
from anyformer.data.table import CSV
from anyformer.inputs.audio_features import AudioProcessor
from anyformer.inputs.recordings import AudioRecording
from anyformer.parts import MLP, LanguageSpecific
from tiny import CONFIGS, inputs_of, model_of

MANY = 1_000_000


def many_labels(folder: Path) -> None:
    config = {**CONFIGS["bert"], "architectures": ["BertForSequenceClassification"]}
    spec = families.find("bert").read({**config, "id2label": {str(i): f"label {i}" for i in range(MANY)}})
    assert spec.head.num_labels == MANY


def many_bad_words(folder: Path) -> None:
    words = [[i % 50, i // 50 % 50] for i in range(MANY)]
    af.generate(model_of("gpt2"), **inputs_of("gpt2"), max_new_tokens=2, bad_words_ids=words)


def many_languages(folder: Path) -> None:
    op = LanguageSpecific(op=MLP(width=4), tokens=tuple(range(20_000)))
    af.override(model_of("gpt2").spec, {"decoder.layers.feedforward.op": op})


def slow_recording(folder: Path) -> None:
    with wave.open(str(folder / "slow.wav"), "wb") as file:
        file.setparams((1, 2, 1, 0, "NONE", ""))
        file.writeframes(bytes(2 * 10_000))
    AudioRecording.open(str(folder / "slow.wav")).read(16_000)


def high_rate(folder: Path) -> None:
    AudioProcessor(sampling_rate=999_983)(np.zeros(999_983, np.float32))


def line_of_3_gigabytes(folder: Path) -> None:
    line = gzip.compress(b"a" * 2**24) * (3 * 2**6)  # members of a gzip file may follow each other
    (folder / "bomb.csv.gz").write_bytes(gzip.compress(b"text,label\n") + line)
    for _ in CSV(path=str(folder / "bomb.csv.gz")).raw():
        pass


def train(setting: str, folder: Path) -> None:
    (folder / "films.csv").write_text("text,mood\n" + "fine,good\nawful,bad\n" * 20)
    own = ["--csv", str(folder / "films.csv"), "--label", "mood", "--out", str(folder / "run")]
    small = ["--set", "model.encoder.depth=1", "--set", "steps=1", "--set", setting]
    assert cli.main(["train", *own, *small]) in (0, 2)


ATTACKS: list[Any] = [
    many_labels, many_bad_words, many_languages, slow_recording, high_rate, line_of_3_gigabytes,
    functools.partial(train, "batch.examples=1000000"), functools.partial(train, "vocabulary.size=1000000000"),
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: getattr(attack, "__name__", "train"))
def test_enormous_sizes(attack: Any, tmp_path: Path) -> None:
    (result,) = results([functools.partial(attack, tmp_path)])
    assert result.good, f"{result.what}: {result.line}\n{result.where}"
