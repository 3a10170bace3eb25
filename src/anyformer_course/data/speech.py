"""Spoken digits from a formant synthesiser: glottal pulses and noise through resonators [Klatt 1980].

The vowels have the formants measured by Peterson and Barney (1952); the consonants are approximations. A speaker has a
pitch, a vocal tract size, a speed and breathiness. Every recording is different.
"""

from __future__ import annotations

import itertools
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RATE = 8000  # samples per second
TAKES = 50  # recordings per digit and speaker, as in the Free Spoken Digit Dataset
Progress = Callable[[int, int], object]


class Sound(NamedTuple):
    """A piece of speech: its duration, its formants, and the loudness of its three sources."""

    ms: int
    formants: tuple[int, int, int]  # Hz
    voice: float = 0.0  # pulses through the formants
    breath: float = 0.0  # noise through the formants
    hiss: float = 0.0  # noise through a separate resonator
    place: tuple[int, int] = (3000, 1500)  # frequency and bandwidth of that resonator, Hz


def vowel(ms: int, *formants: int) -> Sound:
    return Sound(ms, (formants[0], formants[1], formants[2]), voice=1.0)


AA, AH, AO = (730, 1090, 2440), (640, 1190, 2390), (570, 840, 2410)
EH, IH, IY = (530, 1840, 2480), (390, 1990, 2550), (270, 2290, 3010)
UW, OW = (300, 870, 2240), (450, 950, 2350)
R, W, N, V = (310, 1060, 1380), (290, 610, 2150), (250, 1400, 2500), (220, 1100, 2080)
NN = Sound(80, N, voice=0.4)
VV = Sound(60, V, voice=0.35, hiss=0.06, place=(2600, 2500))
SS = Sound(120, (320, 1390, 2530), hiss=0.5, place=(3600, 500))
FF = Sound(100, (340, 1100, 2080), hiss=0.15, place=(2500, 3000))
DIGITS: dict[str, tuple[Sound, ...]] = {
    "zero": (Sound(90, (240, 1390, 2530), voice=0.4, hiss=0.3, place=(3600, 500)), vowel(90, *IH), vowel(60, *R),
             vowel(100, *OW), vowel(70, *UW)),
    "one": (Sound(60, W, voice=0.6), vowel(140, *AH), NN),
    "two": (Sound(15, IH, hiss=0.8, place=(3300, 800)), Sound(45, IH, breath=0.6), vowel(60, 320, 1500, 2300),
            vowel(140, *UW)),
    "three": (Sound(90, (320, 1290, 2540), hiss=0.1, place=(3200, 2500)), vowel(70, *R), vowel(170, *IY)),
    "four": (FF, vowel(150, *AO), vowel(90, 480, 1200, 1650)),
    "five": (FF, vowel(120, *AA), vowel(90, *IH), VV),
    "six": (SS, vowel(80, *IH), Sound(50, IH), Sound(20, (350, 1900, 2400), hiss=0.6, place=(1900, 500)), SS),
    "seven": (SS, vowel(90, *EH), VV, vowel(60, 500, 1400, 2400), NN),
    "eight": (vowel(90, 480, 2000, 2550), vowel(90, *IY), Sound(50, IY), Sound(30, IY, hiss=0.5, place=(3300, 1000))),
    "nine": (NN, vowel(120, *AA), vowel(90, *IH), NN),
}  # fmt: skip


class Speaker(NamedTuple):
    pitch: float  # Hz
    tract: float  # formant frequencies relative to DIGITS
    speed: float
    breath: float


SPEAKERS = {
    "ada": Speaker(210, 1.16, 1.05, 0.06),
    "ben": Speaker(105, 0.97, 0.95, 0.02),
    "cleo": Speaker(185, 1.10, 0.90, 0.10),
    "dan": Speaker(130, 1.03, 1.15, 0.03),
    "eva": Speaker(235, 1.20, 1.00, 0.04),
    "finn": Speaker(90, 0.94, 0.88, 0.05),
}


def resonate(tube: np.ndarray, hiss: np.ndarray, frequency: np.ndarray, bandwidth: np.ndarray) -> np.ndarray:
    """Return (B, T) sound: `tube` (B, T) through all resonators but the last in series, plus `hiss` (B, T) through the
    last. The K resonators have two poles; their frequency and bandwidth (K, B, T), in Hz, change over time."""
    radius = np.exp(-np.pi * bandwidth / RATE)
    b, c = 2 * radius * np.cos(2 * np.pi * np.minimum(frequency, 0.48 * RATE) / RATE), -(radius**2)
    gain, b, c = (np.ascontiguousarray(each.transpose(2, 0, 1)) for each in (1 - b - c, b, c))  # (T, K, B)
    inputs = np.zeros_like(gain)
    inputs[:, 0], inputs[:, -1] = tube.T, hiss.T
    one = two = np.zeros_like(gain[0])
    out = np.empty(tube.shape[::-1])
    for t in range(len(out)):
        inputs[t, 1:-1] += one[:-2]  # delayed by a sample, so that all resonators can be computed at once
        now = gain[t] * inputs[t] + b[t] * one + c[t] * two
        two, one = one, now
        out[t] = now[-2] + now[-1]
    return out.T


def smooth(track: np.ndarray, ms: float) -> np.ndarray:
    """Smooth a track (T,) with a moving average of `ms` milliseconds, because articulators move gradually."""
    width = max(int(ms * RATE / 1000) | 1, 1)
    sums = np.cumsum(np.pad(track, (width // 2 + 1, width // 2), mode="edge"))
    return (sums[width:] - sums[:-width]) / width


def articulate(sounds: tuple[Sound, ...], speaker: Speaker, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the tracks of one take (T samples): formants (3, T), loudness by source, pitch, hiss resonator (2, T)."""
    sounds = (*sounds, sounds[-1]._replace(ms=40, voice=0.0, breath=0.0, hiss=0.0))  # fade out
    pace = speaker.speed * random.uniform(0.88, 1.12)
    lengths = [max(int(s.ms * random.uniform(0.85, 1.15) / pace * RATE / 1000), 8) for s in sounds]

    def track(values: list[float], ms: float) -> np.ndarray:
        return smooth(np.repeat(np.asarray(values, float), lengths), ms)

    tract = speaker.tract * random.uniform(0.97, 1.03)
    formants = [track([s.formants[i] * tract * random.uniform(0.97, 1.03) for s in sounds], 50) for i in range(3)]
    fall = np.linspace(random.uniform(1.0, 1.12), random.uniform(0.82, 0.95), sum(lengths))
    voice = track([s.voice for s in sounds], 15)
    return {
        "formants": np.stack(formants),
        "voice": voice,
        "breath": track([s.breath for s in sounds], 10) + speaker.breath * voice,
        "hiss": track([s.hiss for s in sounds], 10),
        "place": np.stack([track([s.place[i] for s in sounds], 10) for i in range(2)]),
        "pitch": speaker.pitch * random.uniform(0.94, 1.06) * fall * (1 + 0.01 * random.standard_normal(sum(lengths))),
    }


def glottal_flow(phase: np.ndarray) -> np.ndarray:
    """Return the derivative of a glottal pulse [Rosenberg 1971]: opening for 0.4 of a period, then closing for 0.16."""
    phase = phase % 1
    opening = np.sin(np.pi * phase / 0.4) / 0.4
    closing = -np.sin(np.pi / 2 * (phase - 0.4) / 0.16) / 0.16
    return np.where(phase < 0.4, opening, np.where(phase < 0.56, closing, 0.0))


def synthesise(takes: list[dict[str, np.ndarray]], random: np.random.Generator) -> list[np.ndarray]:
    """Return the 16-bit samples of each take."""
    lengths = [take["voice"].shape[-1] for take in takes]
    longest = max(lengths)

    def rows(name: str) -> np.ndarray:
        """Stack a track of all takes, (B, ..., T), padded with their last values."""
        pads = [[(0, 0)] * (take[name].ndim - 1) + [(0, longest - take[name].shape[-1])] for take in takes]
        return np.stack([np.pad(take[name], pad, mode="edge") for take, pad in zip(takes, pads, strict=True)])

    noise = random.standard_normal((2, len(takes), longest))
    tube = rows("voice") * glottal_flow(np.cumsum(rows("pitch") / RATE, -1)) + rows("breath") * noise[0]
    formants, place = rows("formants").swapaxes(0, 1), rows("place").swapaxes(0, 1)
    widths = np.broadcast_to(np.array([70, 100, 150, 250])[:, None, None], (4, *tube.shape))
    sound = resonate(
        tube,
        0.7 * rows("hiss") * noise[1],
        np.concatenate([formants, np.full_like(formants[:1], 3400), place[:1]]),
        np.concatenate([widths, place[1:]]),
    )
    cut = [row[:n] for row, n in zip(sound, lengths, strict=True)]
    peaks = random.uniform(0.3, 0.9, len(takes))
    return [np.rint(32767 * k * row / np.abs(row).max()).astype(np.int16) for k, row in zip(peaks, cut, strict=True)]


def speak_digits(
    seed: int = 0, takes: int = TAKES, progress: Progress = lambda done, total: None
) -> dict[str, np.ndarray]:
    """Return the arrays that `Recordings` reads, with "label" (digit), "speaker" and "index" (take) per recording."""
    chosen = list(itertools.product(range(takes), SPEAKERS, enumerate(DIGITS)))
    audio: list[np.ndarray] = []
    size = 2 * len(SPEAKERS) * len(DIGITS)  # takes synthesised at once
    for start in range(0, len(chosen), size):
        random = np.random.default_rng((seed, start))
        spoken = [
            articulate(DIGITS[word], SPEAKERS[name], random) for _, name, (_, word) in chosen[start : start + size]
        ]
        audio += synthesise(spoken, random)
        progress(len(audio), len(chosen))
    return {
        "audio": np.concatenate(audio),
        "offsets": np.append(0, np.cumsum([len(each) for each in audio])),
        "label": np.array([digit for _, _, (digit, _) in chosen], np.int8),
        "speaker": np.array([name for _, name, _ in chosen]),
        "index": np.array([take for take, _, _ in chosen], np.int16),
        "rate": np.array(RATE),
    }


def write_wav(path: Path, samples: np.ndarray, rate: int = RATE) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())


def write_digits(folder: Path, seed: int, progress: Progress, takes: int = TAKES) -> None:
    """Write digits.npz, and the first take of each digit and speaker as a WAV file to listen to."""
    arrays: Any = speak_digits(seed, takes, progress)
    np.savez_compressed(folder / "digits.npz", **arrays)
    (folder / "wav").mkdir()
    words, offsets = list(DIGITS), arrays["offsets"]
    for i in np.flatnonzero(arrays["index"] == 0):
        name = f"{words[arrays['label'][i]]}_{arrays['speaker'][i]}.wav"
        write_wav(folder / "wav" / name, arrays["audio"][offsets[i] : offsets[i + 1]])
