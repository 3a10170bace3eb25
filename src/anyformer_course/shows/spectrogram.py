"""A spectrogram: sound as frames of frequencies, and frames as tokens.

The sound is a WAV or FLAC file, or one tone per letter of a text. Whisper computes 100 frames of 80 mel channels per
second and makes a token of two frames, a Conformer of four.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyformer.inputs.audio_features import AudioProcessor
from anyformer.look import figures
from anyformer.specs.field_types import Count
from anyformer_course.shown import Shown, Table
from anyformer_course.shows._small import module

RATE = 16000  # samples per second


def example(
    sound: str = "one two three", *, channels: int = 80, hop: int = 160, width: Count = 32, seed: int = 0
) -> Shown:
    """Compute the log-mel spectrogram of a sound file, or of tones for the letters of a text, and count its tokens."""
    import anyformer as af

    is_file = sound.lower().endswith((".wav", ".flac"))
    if is_file and not Path(sound).exists():
        raise ValueError(f"{sound}: no such file")
    if not sound.strip() or (not is_file and len(sound) > 60):
        raise ValueError("give a text of 1 to 60 letters, or a WAV or FLAC file")
    reader = AudioProcessor(kind="mel", feature_size=channels, hop_length=hop)
    source: Any = sound if is_file else (tones(sound), RATE)
    features = reader(source, padding="longest")["input_features"]  # (1, M, F)
    frames = features.shape[-1]
    samples = frames * hop
    embedding = module(af.parts.SpectrogramEmbedding(channels=channels), width, seed)
    with torch.no_grad():
        tokens = embedding({"input_features": features})[0].shape[1]
    seconds = samples / RATE
    rows = [
        ["samples", samples, RATE],
        [f"frames of {channels} channels", frames, RATE / hop],
        ["tokens of Whisper (2 frames each)", tokens, RATE / hop / 2],
        ["tokens of a Conformer (4 frames each)", -(-frames // 4), RATE / hop / 4],
    ]

    def draw() -> Any:
        figure, axes = figures.new(1, 1, 8, 3.2)
        image = axes[0, 0].imshow(
            features[0].numpy(), aspect="auto", origin="lower", cmap="magma", extent=(0, seconds, 0, channels)
        )
        figure.colorbar(image, ax=axes[0, 0])
        axes[0, 0].set(xlabel="seconds", ylabel="mel channel", title=f"{sound}: {frames} frames, {tokens} tokens")
        return figure

    return Shown(
        f"{seconds:.2f} seconds are {samples:,} samples, {frames} frames and {tokens} tokens of Whisper.",
        [
            Table(
                "from sound to tokens", ("unit", "number", "per second", "pairs in attention"),
                [[name, number, rate, number**2] for name, number, rate in rows],
            )
        ],
        draw,
    )  # fmt: skip


def tones(text: str) -> np.ndarray:
    """Return 0.12 seconds of two tones per letter, which depend on the letter, and silence for spaces."""
    time = np.arange(int(0.12 * RATE)) / RATE
    pieces = []
    for letter in text.lower():
        low = 200 * 2 ** (ord(letter) % 13 / 6)
        tone = np.sin(2 * np.pi * low * time) + 0.5 * np.sin(2 * np.pi * 3.1 * low * time)
        pieces.append(np.zeros_like(time) if letter.isspace() else tone * np.hanning(len(time)))
    return np.concatenate(pieces).astype(np.float32) * 0.3
