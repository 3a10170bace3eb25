"""The base class of objectives on audio, with its augmentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from anyformer.generation import generate
from anyformer.inputs.audio_features import AudioProcessor
from anyformer.inputs.recordings import AudioRecording
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record
from anyformer.objectives.examples import field, text_of
from anyformer.objectives.heads import model_inputs
from anyformer.objectives.objective import Example, Objective, Predictions, Predictor
from anyformer.specs.field_types import Chance, NonNegative
from anyformer.specs.messages import quote

LOUDEST = 32768  # records contain samples as 16-bit integers


def read_samples(example: Mapping[str, Any], rate: int) -> np.ndarray:
    """Return the samples of column "audio" at `rate`. If it is not a file, column "rate" contains its sampling rate."""
    audio, given = field(example, "audio"), example.get("rate")
    with AudioRecording.open(audio, None if given is None else int(given)) as recording:
        return recording.read(rate)


class Sounds(Objective, abstract=True):
    """Column "audio": a file, or samples (T,) with their sampling rate in column "rate". Audio is resampled to `rate`
    once. `form` is the model's input: samples ("values"), or a spectrogram with `channels` channels as in Whisper
    ("mel", always `seconds` long) or Parakeet ("bank"), with a frame of `window` samples every `hop` samples.

    Each time a recording is seen, its speed and pitch change by a random factor of up to 1 +- `speed` [Ko et al. 2015],
    and white noise of up to `noise` times its loudness is added. The size of a record is its number of samples."""

    columns: ClassVar[tuple[str, ...]] = ("audio",)

    rate: int = 16000
    form: Literal["values", "mel", "bank"] = "values"
    channels: int = 80
    window: int = 400
    hop: int = 160
    seconds: int = 30
    speed: Chance = 0.0
    noise: NonNegative = 0.0

    def check(self) -> None:
        self.processor  # noqa: B018  this checks the other fields

    @property
    def texts(self) -> tuple[str, ...]:
        return self.columns[1:]  # audio may be a file name, which is not a text

    @property
    def processor(self) -> AudioProcessor:
        """The audio processor of the trained model."""
        if self.form == "values":
            return AudioProcessor(sampling_rate=self.rate, return_attention_mask=True)
        n_fft = 1 << (self.window - 1).bit_length() if self.form == "bank" else self.window  # bank: a power of 2
        return AudioProcessor(
            kind=self.form,
            sampling_rate=self.rate,
            feature_size=self.channels,
            n_fft=n_fft,
            win_length=self.window,
            hop_length=self.hop,
            chunk_length=self.seconds,
        )

    def write_settings(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        self.processor.save(folder)
        return folder

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        samples = read_samples(example, self.rate)
        if len(samples) < 2 * self.hop:
            raise ValueError(f"the recording has {len(samples)} samples, less than two frames")
        if self.form == "mel" and len(samples) > self.seconds * self.rate:
            raise ValueError(f"the recording has {len(samples) / self.rate:.1f} seconds; the limit is {self.seconds}")
        return {"samples": np.clip(np.rint(samples * LOUDEST), -LOUDEST, LOUDEST - 1).astype(np.int16)}

    def size(self, record: Record) -> int:
        return len(record["samples"])

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        if not self.speed and not self.noise:
            return record
        samples = record["samples"].astype(np.float32) / LOUDEST
        if self.speed:
            times = np.arange(0, len(samples) - 1, random.uniform(1 - self.speed, 1 + self.speed))
            samples = np.interp(times, np.arange(len(samples)), samples).astype(np.float32)
        if self.noise:
            level = np.sqrt(np.square(samples).mean()) * random.uniform(0, self.noise)
            samples = samples + level * random.standard_normal(len(samples), np.float32)
        return {**record, "samples": samples}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        rows = [record["samples"] for record in records]
        rows = [row / np.float32(LOUDEST) if row.dtype == np.int16 else row for row in rows]
        longest = self.seconds * self.rate if self.form == "mel" else max(map(len, rows))
        return self.processor.extract(rows, longest, masked=True)

    def check_embedding(self, embedding: Any) -> None:
        """Raise ValueError if the model reads a different form of audio."""
        name = "input_values" if self.form == "values" else "input_features"
        if name not in embedding.inputs:
            raise ValueError(f"form={quote(self.form)} makes {name}, but the model takes {', '.join(embedding.inputs)}")
        if self.form != "values" and embedding.channels != self.channels:
            raise ValueError(f"channels is {self.channels}, but the model reads spectrograms with {embedding.channels}")

    def predict(self, job: Predictor, examples: Sequence[Example], records: Sequence[list[Record]]) -> Predictions:
        """Return the transcripts, for objectives whose model writes or spells texts."""
        predicted = [""] * len(records)
        for which, batch in job.batches(self, [record for (record,) in records]):
            inputs = {name: value for name, value in model_inputs(job.model, batch).items() if name != "labels"}
            ids = generate(job.model, **inputs, num_beams=job.num_beams, **self.generation_options(job.model, batch))
            for i, text in zip(which, job.tokenizer.batch_decode(ids.cpu(), skip_special_tokens=True)):
                predicted[i] = text.strip()
        return Predictions(predicted, [text_of(example, "text") for example in examples])

    def generation_options(self, model: TransformerModule, batch: Batch) -> dict[str, Any]:
        """Return the options of `generate` for predictions."""
        return {}
