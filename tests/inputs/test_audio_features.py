"""Audio features compared with transformers' extractors, soxr and soundfile; and files that are not audio."""

from __future__ import annotations

import json
import sys
import tracemalloc
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.inputs.audio_features import AudioProcessor
from anyformer.inputs.recordings import BLOCK, LOUDEST, AudioRecording, UnreadableAudio

transformers, soundfile, soxr = (pytest.importorskip(name) for name in ("transformers", "soundfile", "soxr"))
RATE = 16000


def tone(seconds: float, rate: int = RATE, seed: int = 0) -> np.ndarray:
    """Three tones that fade in, and noise."""
    t = np.arange(int(seconds * rate)) / rate
    rise = np.minimum(1, 3 * t)
    waves = sum(np.sin(2 * np.pi * f * t) * rise for f in (220, 700, 2600)) / 5
    noise = np.random.default_rng(seed).normal(size=len(t)) * 0.01
    return (waves + noise).astype(np.float32)


def folder(path: Path, extractor: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    extractor.save_pretrained(path)
    return path


VALUES = [
    {}, {"return_attention_mask": True}, {"do_normalize": False, "return_attention_mask": True},
    {"padding_value": 0.5, "return_attention_mask": True}, {"do_normalize": None, "return_attention_mask": None},
]  # fmt: skip


@pytest.mark.parametrize("config", VALUES, ids=str)
def test_values_equal_published(config: dict, tmp_path) -> None:
    theirs = transformers.Wav2Vec2FeatureExtractor(**config)
    mine = AudioProcessor.load(folder(tmp_path, theirs))
    rows = [tone(0.3), tone(0.5, seed=1) * 3 + 0.2, tone(0.1)]
    for given, options in (
        ([rows[0]], {}), (rows, {}), (rows, {"padding": "max_length", "max_length": 9000}),
        (rows, {"padding": "longest", "max_length": 3000, "truncation": True}),
        (rows, {"padding": "longest", "max_length": 9000}),
    ):  # fmt: skip
        expected = theirs(given, sampling_rate=RATE, return_tensors="pt", **{"padding": "longest", **options})
        found = mine(given, RATE, **options)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name] > 0, value > 0) and (found[name] - value).abs().max() <= 1e-6


def test_whole_numbers_are_parts_of_the_largest() -> None:
    """Integers are scaled as soundfile scales samples of that type."""
    for kind, top in ((np.int8, 2**7), (np.int16, 2**15), (np.int32, 2**31)):
        least = np.iinfo(kind).min
        samples = np.array([least, least // 2, 0, -(least // 4)], kind)
        found = AudioRecording.open((samples, RATE)).read(RATE)
        assert found.dtype == np.float32 and found.tolist() == [-1.0, -0.5, 0.0, 0.25] and -least == top
    for kind in (np.int64, np.uint8, np.uint16):
        with pytest.raises(ValueError, match=f"int16 or int32, got {np.dtype(kind)}"):
            AudioRecording.open((np.zeros(4, kind), RATE))


MELS = [{}, {"feature_size": 128}, {"n_fft": 512, "hop_length": 200, "chunk_length": 3, "feature_size": 20}]


@pytest.mark.parametrize("config", MELS, ids=str)
def test_spectrograms_equal_published(config: dict, tmp_path) -> None:
    theirs = transformers.WhisperFeatureExtractor(**config)
    mine = AudioProcessor.load(folder(tmp_path, theirs))
    rows = [tone(1.3), tone(3.7, seed=1) / 50]
    for options in (
        {}, {"return_attention_mask": True}, {"padding": "longest", "truncation": False, "return_attention_mask": True},
    ):  # fmt: skip
        expected = theirs(rows, sampling_rate=RATE, return_tensors="pt", **options)
        found = mine(rows, RATE, **options)
        assert found.keys() == expected.keys() and mine.chunk_frames == theirs.nb_max_frames
        assert found["input_features"].shape == expected["input_features"].shape
        assert (found["input_features"] - expected["input_features"]).abs().max() <= 1e-4
        if "return_attention_mask" in options:
            assert torch.equal(found["attention_mask"], expected["attention_mask"])


def parakeet(**config: Any) -> Any:
    """The published extractor, with filters from transformers instead of a library that may be missing."""
    from transformers.audio_utils import mel_filter_bank
    from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor
    from transformers.models.parakeet.feature_extraction_parakeet import ParakeetFeatureExtractor

    given = {"hop_length": 160, "n_fft": 512, "win_length": 400, "preemphasis": 0.97, "feature_size": 80,
             "sampling_rate": RATE, **config}  # fmt: skip
    theirs = ParakeetFeatureExtractor.__new__(ParakeetFeatureExtractor)
    SequenceFeatureExtractor.__init__(theirs, given["feature_size"], given["sampling_rate"], 0.0)
    bins, rate = given["n_fft"] // 2 + 1, given["sampling_rate"]
    filters = mel_filter_bank(bins, given["feature_size"], 0.0, rate / 2, rate, norm="slaney", mel_scale="slaney")
    theirs.__dict__ |= {**given, "mel_filters": torch.from_numpy(filters.T).float()}
    return theirs


BANKS = [{}, {"feature_size": 128}, {"n_fft": 256, "hop_length": 80, "win_length": 200, "preemphasis": 0.5,
                                     "feature_size": 20, "sampling_rate": 8000}]  # fmt: skip


@pytest.mark.parametrize("config", BANKS, ids=str)
def test_banks_equal_published(config: dict, tmp_path) -> None:
    theirs = parakeet(**config)
    mine = AudioProcessor.from_config({"feature_extractor_type": "ParakeetFeatureExtractor", **config})
    rate = mine.sampling_rate
    rows = [tone(0.7, rate), tone(0.41, rate, seed=1) / 50]
    for given in (rows, rows[1:]):
        expected, found = theirs(given, sampling_rate=rate), mine(given, rate)
        assert found.keys() == expected.keys() and torch.equal(found["attention_mask"], expected["attention_mask"])
        assert (found["input_features"] - expected["input_features"]).abs().max() <= 1e-4
    mine.save(tmp_path)
    assert AudioProcessor.load(tmp_path) == mine


def test_a_file_with_no_more_than_its_kind(tmp_path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(
        '{"feature_extractor_type": "Wav2Vec2FeatureExtractor", "padding_side": null}'
    )
    expected = transformers.AutoFeatureExtractor.from_pretrained(tmp_path)(tone(0.2), return_tensors="pt")
    found = af.processor(tmp_path)(audio=tone(0.2), sampling_rate=RATE)
    assert (found["input_values"] - expected["input_values"]).abs().max() <= 1e-6


def test_old_files_and_those_of_processors(tmp_path) -> None:
    old = {"do_normalize": True, "feature_size": 1, "padding_side": "right", "return_attention_mask": False}
    assert AudioProcessor.from_config({**old, "sampling_rate": 8000}) == AudioProcessor(sampling_rate=8000)
    mel = {"n_fft": 400, "feature_size": 80, "hop_length": 160, "chunk_length": 30, "nb_max_frames": 3000}
    assert AudioProcessor.from_config(mel) == AudioProcessor(kind="mel", feature_size=80)
    whole = {"processor_class": "WhisperProcessor", "feature_extractor": {**mel, "feature_size": 128}}
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    assert AudioProcessor.load(tmp_path).feature_size == 128
    for config, message in (
        ({"feature_extractor_type": "ClapFeatureExtractor"}, "not supported"),
        ({"padding_side": "left"}, "at their end"),
        ({"sampling_rate": -1}, "sampling_rate is -1"), ({"n_fft": "x"}, "n_fft is 'x'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            AudioProcessor.from_config(config)
    with pytest.raises(ValueError, match="no preprocessor_config.json"):
        AudioProcessor.load(tmp_path / "nothing")


@pytest.mark.parametrize(("name", "subtype"), [("a.wav", "PCM_16"), ("a.wav", "FLOAT"), ("a.flac", "PCM_24"),
                                               ("a.ogg", "VORBIS")])  # fmt: skip
@pytest.mark.parametrize("rate", [16000, 44100, 8000])
def test_files_of_any_rate(name: str, subtype: str, rate: int, tmp_path) -> None:
    samples = np.stack([tone(1.1, rate), tone(1.1, rate, seed=1)], 1)
    soundfile.write(tmp_path / name, samples, rate, subtype=subtype)
    stored, _ = soundfile.read(tmp_path / name, dtype="float32", always_2d=True)
    expected = soxr.resample(stored.mean(1), rate, RATE)
    with AudioRecording.open(tmp_path / name) as recording:
        assert recording.rate == rate
        found = recording.read(RATE)
    assert abs(len(found) - len(expected)) <= 1
    n = min(len(found), len(expected))
    assert np.abs(found[:n] - expected[:n]).max() <= 1e-5
    both = AudioProcessor()([tmp_path / name, (stored.mean(1), rate)])["input_values"]
    assert (both[0] - both[1]).abs().max() <= 1e-4


def test_kinds_of_samples() -> None:
    samples = tone(0.2)
    expected = AudioProcessor(do_normalize=False)(samples, RATE)["input_values"]
    assert torch.equal(expected[0], torch.from_numpy(samples))
    for given in (samples.astype(np.float64), samples.tolist(), torch.from_numpy(samples), (samples, RATE)):
        rate = None if isinstance(given, tuple) else RATE
        given = [given] if isinstance(given, list) else given
        assert torch.equal(AudioProcessor(do_normalize=False)(given, rate)["input_values"], expected)
    whole = AudioProcessor(do_normalize=False)((samples * 32768).astype(np.int16), RATE)["input_values"]
    assert (whole - expected).abs().max() <= 1 / 32768


def test_streamed_frames_are_those_of_the_whole() -> None:
    samples, mel = tone(7.31), AudioProcessor(kind="mel", feature_size=80)
    whole = mel(samples, RATE, padding="longest", truncation=False)["input_features"][0]
    for size in (100, 3999, 16000, 200_000):
        blocks = [samples[i : i + size] for i in range(0, len(samples), size)]
        powers = torch.cat(list(mel.stream(blocks)), dim=-1)
        assert powers.shape == whole.shape
        assert (mel.normalize(powers, powers.max()) - whole).abs().max() <= 1e-5
    coarse = AudioProcessor(kind="mel", feature_size=10, n_fft=400, hop_length=390)
    whole = coarse(samples, RATE, padding="longest", truncation=False)["input_features"][0]
    powers = torch.cat(list(coarse.stream([samples[:5000], samples[5000:]])), dim=-1)
    assert (coarse.normalize(powers, powers.max()) - whole).abs().max() <= 1e-5


def silence(path: Path, hours: float, rate: int) -> Path:
    """A sparse WAV file: its samples need no disk space."""
    count = int(hours * 3600 * rate)
    with wave.open(str(path), "wb") as stream:
        stream.setnchannels(1), stream.setsampwidth(2), stream.setframerate(rate)
        stream.setnframes(count)
        stream.writeframesraw(b"")
    header = bytearray(path.read_bytes())
    header[4:8], header[40:44] = (36 + 2 * count).to_bytes(4, "little"), (2 * count).to_bytes(4, "little")
    path.write_bytes(header)
    with path.open("r+b") as stream:
        stream.truncate(44 + 2 * count)
    return path


def test_three_hours_in_little_memory(tmp_path) -> None:
    file = silence(tmp_path / "long.wav", 3, 4000)
    tracemalloc.start()
    with AudioRecording.open(file) as recording:
        total = sum(len(block) for block in recording.blocks(2000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == 3 * 3600 * 2000 and peak < 20 * BLOCK * 4000  # bytes: a few blocks
    mel = AudioProcessor(kind="mel", feature_size=80, chunk_length=1)
    assert mel(file)["input_features"].shape == (1, 80, 100)  # only the required part of a long file is read


@pytest.mark.parametrize("loudness", [0, LOUDEST])
def test_features_of_silence_and_of_the_loudest_samples_are_finite(loudness: float) -> None:
    bank = AudioProcessor(kind="bank", feature_size=80, n_fft=512)
    for processor in (AudioProcessor(), AudioProcessor(kind="mel", feature_size=80, chunk_length=1), bank):
        for value in processor(tone(0.25) * np.float32(loudness), RATE).values():
            assert value.isfinite().all()


def broken(folder: Path) -> dict[str, tuple[Any, str]]:
    soundfile.write(folder / "a.wav", tone(1), RATE, subtype="PCM_16")
    soundfile.write(folder / "a.flac", tone(1), RATE)
    whole = {name: (folder / name).read_bytes() for name in ("a.wav", "a.flac")}
    noise = tone(0.1)
    noise[700] = np.nan
    soundfile.write(folder / "nan.wav", noise, RATE, subtype="FLOAT")
    soundfile.write(folder / "loud.wav", np.where(np.isnan(noise), 1e19, noise), RATE, subtype="FLOAT")
    files = {
        "half.wav": whole["a.wav"][:30], "rate.wav": whole["a.wav"][:24] + bytes(4) + whole["a.wav"][28:],
        "a.mp3": bytes(30), "empty.wav": b"",
        "empty.flac": b"", "text.flac": b"not a sound", "text.wav": b"not a sound",
        "head.wav": b"RIFF",
        "short.wav": whole["a.wav"][:9000], "short.flac": whole["a.flac"][: len(whole["a.flac"]) // 2],
        "none.wav": whole["a.wav"][:44],
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return {
        "empty": (folder / "empty.wav", "empty.wav: is empty"), "empty flac": (folder / "empty.flac", "is empty"),
        "text": (folder / "text.flac", "text.flac: "), "text wav": (folder / "text.wav", "text.wav: "),
        "head": (folder / "head.wav", "head.wav: "), "no samples": (folder / "none.wav", "ends after 0 of 16,000"),
        "truncated": (folder / "short.wav", r"short.wav: ends after 4,478 of 16,000 samples"),
        "truncated flac": (folder / "short.flac", "short.flac: "), "NaN": (folder / "nan.wav", "sample 700 is not a"),
        "NaN samples": ((noise, RATE), "the samples: sample 700"), "nothing": (np.zeros(0, np.float32), "no samples"),
        "missing": (folder / "gone.wav", "no such file"), "two channels": (np.zeros((2, 9)), "one channel"),
        "words": (np.array(["a"]), "one channel of numbers"), "bytes": (np.zeros(9, np.uint8), "got uint8"),
        "rate 0": ((noise, 0), "sampling_rate is 0; it must"), "rate": ((noise, -8000), "sampling_rate is -8000;"),
        "rate of a file": (folder / "rate.wav", "rate.wav: its header has 0 samples per second; valid: 1 to 10,000"),
        "30 bytes": (folder / "half.wav", "half.wav: ends too early"),
        "mp3": (folder / "a.mp3", "a.mp3: contains no readable sound"),
        "loud": (folder / "loud.wav", r"loud.wav: sample 700 is 1e\+19, too large"),
        "loud samples": ((np.full(900, 1e19), RATE), r"the samples: sample 0 is 1e\+19, too large"),
    }  # fmt: skip


BROKEN = ("empty", "empty flac", "text", "text wav", "head", "no samples", "truncated", "truncated flac", "NaN",
          "NaN samples", "nothing", "missing", "two channels", "words", "bytes", "rate 0", "rate", "rate of a file",
          "30 bytes", "mp3", "loud", "loud samples")  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_recording_is_one_line(name: str, tmp_path) -> None:
    given, message = broken(tmp_path)[name]
    rate = RATE if isinstance(given, np.ndarray) else None
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        AudioProcessor()(given, rate)
    assert "\n" not in str(error.value)
    with pytest.raises((ValueError, FileNotFoundError), match=f"recording 2: .*{message}|{message}"):
        AudioProcessor()([(tone(0.1), RATE), given], rate)


def test_what_a_caller_forgets() -> None:
    with pytest.raises(ValueError, match="samples need their rate"):
        AudioProcessor()(tone(0.1))
    with pytest.raises(ValueError, match="less than a frame of 400"):
        AudioProcessor(kind="mel", feature_size=80)(tone(0.01), RATE, padding="longest", truncation=False)
    with pytest.raises(ValueError, match="less than a frame of 400"):
        list(AudioProcessor(kind="mel", feature_size=80).stream([tone(0.01)]))
    bank = AudioProcessor(kind="bank", feature_size=80, n_fft=512)
    with pytest.raises(ValueError, match="160 samples are less than two frames"):
        bank([tone(0.1), tone(0.01)], RATE)
    with pytest.raises(ValueError, match="win_length is 600, longer than n_fft 512"):
        AudioProcessor(kind="bank", feature_size=80, n_fft=512, win_length=600)
    with pytest.raises(ValueError, match="did you mean 'longest'"):
        AudioProcessor()(tone(0.1), RATE, padding="longes")
    with pytest.raises(ValueError, match="needs max_length"):
        AudioProcessor()(tone(0.1), RATE, padding="max_length")
    with pytest.raises(ValueError, match="at least one recording"):
        AudioProcessor()([])


def test_without_the_libraries_one_line_names_them(tmp_path, monkeypatch) -> None:
    soundfile.write(tmp_path / "a.flac", tone(0.1), RATE)
    soundfile.write(tmp_path / "a.wav", tone(0.1), RATE, subtype="PCM_16")
    for name in ("soundfile", "soxr"):
        monkeypatch.setitem(sys.modules, name, None)  # cannot be imported
    assert AudioProcessor()(tmp_path / "a.wav")["input_values"].shape == (1, 1600)
    for given, rate in ((tmp_path / "a.flac", None), (tone(0.1), 8000)):
        with pytest.raises(ValueError, match=r"needs \w+: pip install 'anyformer\[audio\]'$") as error:
            AudioProcessor()(given, rate)
        assert not isinstance(error.value, UnreadableAudio)


def test_a_real_recording(shared_data) -> None:
    samples, rate = soundfile.read(shared_data / "speech_mini_an4" / "jfk.flac", dtype="float32")
    theirs = transformers.WhisperFeatureExtractor()
    if samples.ndim > 1:
        samples = samples.mean(1)
    resampled = samples if rate == RATE else soxr.resample(samples, rate, RATE)
    expected = theirs(resampled, sampling_rate=RATE, return_tensors="pt")["input_features"]
    mine = AudioProcessor(kind="mel", feature_size=80)
    assert (mine(shared_data / "speech_mini_an4" / "jfk.flac")["input_features"] - expected).abs().max() <= 1e-4
