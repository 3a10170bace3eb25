"""Load a model and its input (a text, a picture or a recording) for `anyformer look`."""

from __future__ import annotations

import base64
import functools
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.checkpoint import load, read_spec, spec
from anyformer.inputs.audio_features import AudioProcessor
from anyformer.inputs.image import ENDINGS, Images
from anyformer.inputs.optional_library import import_optional
from anyformer.inputs.processor import Processor, processor
from anyformer.inputs.tokenizer import Tokenizer, check_vocabulary_size
from anyformer.look.sound import Sound
from anyformer.look.views import Scene
from anyformer.models import TransformerModule
from anyformer.models.construct import skeleton
from anyformer.models.model import input_limit
from anyformer.runtime.grid import Grid
from anyformer.specs.messages import quote
from anyformer.specs.services import service
from anyformer.weights import hub

SOUNDS = (".wav", ".flac", ".ogg", ".mp3", ".m4a", ".opus")
BINS = 120  # spectrogram bins of 40 Hz each, for models that read samples
MEDIA = {"pixel_values": "images", "input_values": "audio", "input_features": "audio"}  # input name -> kind of media
MAX_TARGET_TOKENS = 24  # tokens that an encoder-decoder generates if no target is given


def scene(
    source: str,
    given: str,
    *,
    other: str | None = None,
    target: str | None = None,
    device: Any = "cpu",
    dtype: str = "auto",
    offline: bool = False,
) -> Scene:
    """Load a model and its input. `given` is a text, or the file of a picture or a recording, as the model requires;
    `other` is a second input, whose activations can be patched in. `target` is the decoder's text in an encoder-decoder
    (default: the text that it generates)."""
    folder = hub.resolve(source, offline=offline)
    described: Any = read_spec(folder)
    tower = "image" if Path(given).suffix.lower() in ENDINGS else "text"
    if described.towers:  # select the tower that reads the given input
        described = getattr(described, tower)
    name = described.embedding.inputs[0]
    if name not in (*MEDIA, "input_ids"):
        raise ValueError(f"this model reads {name}; `look` takes texts, pictures and sound: use af.look in Python")
    read = reader_of(folder, described)
    model: Any = load(folder, device=device, dtype=dtype)
    model = getattr(model, tower) if model.spec.towers else model
    words = speller(read)
    inputs = inputs_of(model, read, name, given)
    if name == "pixel_values" and not Images.has_settings(folder):
        size = " x ".join(map(str, described.embedding.image_size))
        warnings.warn(f"{folder} has no image processor settings: pictures are scaled to {size}, -1 to 1", stacklevel=3)
    media = picture_of(model, read, name, inputs)
    target_name = "input_ids"
    if model.spec.pair:
        target_name = "decoder_input_ids"
        inputs[target_name] = target_ids(model, read, inputs, target)
    elif target is not None:
        raise ValueError("--target is for models with an encoder and a decoder; this one has one stack")
    other_inputs = None
    if other is not None:
        other_inputs = inputs_of(model, read, name, other)
        if model.spec.pair:
            other_inputs[target_name] = inputs[target_name]
    reads = {"input_ids": "text", "pixel_values": "image"}.get(name, "sound")
    return Scene(
        model,
        inputs,
        name=Path(source).name or source,
        words=words,
        media=media,
        other=other_inputs,
        target=target_name,
        reads=reads,
        sound=lambda: sound_of(model, read, Path(given).expanduser()),
    )


def blueprint(source: str, given: str | None, *, offline: bool = False) -> Scene:
    """Build a model without weights from its description, and read a picture for it (default: a blank one). `source` is
    a folder, a hub id, a name from the zoo or a spec.json."""
    named = Path(source).suffix == ".json" or (not Path(source).exists() and "/" not in source)
    folder = None if named else hub.resolve(source, offline=offline)
    described: Any = spec(source) if folder is None else read_spec(folder)
    if described.towers:
        described = described.image
    read = described.embedding
    if read.inputs[0] != "pixel_values":
        raise ValueError(f"this model reads {read.inputs[0]}, not images")
    channels = read.channels
    pixels = torch.ones(1, channels, *read.image_size)
    if given is not None:
        path = Path(given).expanduser()
        if path.suffix.lower() not in ENDINGS or not path.is_file():
            endings = ", ".join(ENDINGS[:4])
            raise ValueError(f"this model reads a picture: give a file ({endings}, ...), not {quote(given)}")
        stored = folder is not None and Images.has_settings(folder)
        pixels = (Images.load(folder) if folder is not None and stored else plain_images(read))([path])["pixel_values"]
    return Scene(skeleton(described), {"pixel_values": pixels}, name=Path(source).name or source, reads="image")


def plain_images(embedding: Any) -> Images:
    """Return the default image processor of a folder without settings: scale to the model's size, and to -1 to 1."""
    half, size = (0.5,) * embedding.channels, dict(zip(("height", "width"), embedding.image_size, strict=True))
    return Images(size=size, image_mean=half, image_std=half, do_convert_rgb=embedding.channels == 3)


def reader_of(folder: Path, described: Any) -> Processor:
    """Return the processor for a model's inputs; a model of pictures or sound needs no tokenizer."""
    media = MEDIA.get(described.embedding.inputs[0])
    try:
        read = processor(folder)
    except FileNotFoundError:  # no tokenizer and no settings for pictures or sound
        if media is None:
            raise
        read = Processor(folder, None)
    if media is None or media in read.media:
        return read
    if media == "audio":
        raise FileNotFoundError(f"{folder}: no preprocessor_config.json, which is needed to read sound")
    read = Processor(folder, read._tokenizer, (media,))
    read._readers[media] = plain_images(described.embedding)
    return read


def inputs_of(model: TransformerModule, read: Processor, name: str, given: str) -> dict[str, Any]:
    kinds = {
        "pixel_values": ("a picture", ENDINGS),
        "input_values": ("a recording", SOUNDS),
        "input_features": ("a recording", SOUNDS),
        "input_ids": ("text", ()),
    }
    wanted, path = kinds[name][0], Path(given).expanduser()
    is_file = len(given) < 4096 and "\n" not in given and path.suffix.lower() in (*ENDINGS, *SOUNDS) and path.is_file()
    if name == "input_ids":
        if is_file:
            kind = "a picture" if path.suffix.lower() in ENDINGS else "a recording"
            raise ValueError(f"{given} is {kind}, but this model reads text")
        return text_inputs(model, read, given)
    if not is_file:
        endings = ", ".join(kinds[name][1][:4])
        raise ValueError(f"this model reads {wanted}: give a file ({endings}, ...), not {quote(given)}")
    if path.suffix.lower() not in kinds[name][1]:
        raise ValueError(f"{given} is not {wanted}, which this model reads")
    inputs = read(images=[path]) if name == "pixel_values" else read(audio=[path])
    return move_inputs(model, {key: value for key, value in inputs.items() if key in model.inputs})


def text_inputs(model: TransformerModule, read: Processor, text: str) -> dict[str, Any]:
    check_vocabulary_size(model, read.tokenizer)
    if not text:
        raise ValueError("the text is empty")
    inputs = read(text)
    limit = input_limit(model.spec)
    if not inputs["input_ids"].shape[1]:
        raise ValueError("the text has no tokens")
    if limit is not None and inputs["input_ids"].shape[1] > limit:
        raise ValueError(
            f"the text has {inputs['input_ids'].shape[1]:,} tokens, and this model takes at most {limit:,}"
        )
    return move_inputs(model, {key: value for key, value in inputs.items() if key in model.inputs})


def move_inputs(model: TransformerModule, inputs: dict[str, Any]) -> dict[str, Any]:
    """Move inputs to the model's device and dtype; drop an attention mask that hides nothing."""
    moved = {}
    for name, value in inputs.items():
        if isinstance(value, Tensor) and not (name == "attention_mask" and bool(value.all())):
            moved[name] = value.to(model.device, model.dtype if value.is_floating_point() else None)
    return moved


def target_ids(model: TransformerModule, read: Processor, inputs: dict[str, Any], target: str | None) -> Tensor:
    """Return the decoder's token ids (1, T): the start token and the target, or the text that the model generates."""
    if target is None:
        return model.generate(**inputs, max_new_tokens=MAX_TARGET_TOKENS)[:, :-1]
    start = model.spec.start_token
    if start is None:
        raise ValueError("--target: this model's config has no decoder_start_token_id")
    ids = [start, *read.tokenizer.encode_target(target)]
    return torch.tensor([ids], device=model.device)


def speller(read: Processor) -> Callable[[int], str]:
    """Return a function from a token id to its text, including the space before a word."""
    try:
        tokenizer: Tokenizer = read.tokenizer
    except ValueError:
        return str

    def spell(number: int) -> str:
        raw = tokenizer.token(number)
        if raw is None:
            return f"#{number}"
        text = tokenizer.decode([number])
        if not text or "�" in text:
            return raw.replace("▁", " ").replace("Ġ", " ")
        return f" {text}" if raw[0] in "▁Ġ" and not text.startswith(" ") else text

    return spell


# -- pictures behind attention ----------------------------------------------------------------------------------------


def picture_of(model: TransformerModule, read: Processor, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the image or spectrogram that the page shows behind attention, and the grid of its positions."""
    if name == "pixel_values":
        pixels, embedding = inputs[name][0].float().cpu(), model.embedding
        with torch.no_grad():
            _, ctx = embedding(inputs)
        rows, columns = ctx.extra(Grid)
        places = [f"[{i}]" for i in range(ctx.index.shape[-1] - rows * columns)]
        places += [f"{row},{column}" for row in range(rows) for column in range(columns)]
        low, high = pixels.amin(), pixels.amax()
        shades = ((pixels - low) / (high - low).clamp(min=1e-6) * 255).byte()
        return {"image": png(shades), "grid": [rows, columns], "places": places, "about": "the image that was read"}
    if name == "input_ids":
        return {}
    power = power_of(read.reader("audio"), inputs[name][0].float().cpu())
    low, high = power.amin(), power.amax()
    shades = ((power - low) / (high - low).clamp(min=1e-6) * 255).byte().flip(0)
    return {"image": png(shades[None]), "grid": [1, 0], "about": "the spectrogram of the recording"}


def power_of(audio: AudioProcessor, features: Tensor) -> Tensor:
    """Return the spectrogram (M, F) that a model reads; if it reads samples, compute one."""
    if audio.kind != "values":
        return features.T if audio.kind == "bank" else features
    size = min(audio.sampling_rate // 40, len(features))
    waves = torch.stft(features, size, audio.sampling_rate // 100, window=torch.hann_window(size), return_complex=True)
    return waves.abs().clamp(min=1e-5).log()[:BINS]


def sound_of(model: TransformerModule, read: Processor, path: Path) -> Sound:
    """Return the spectrogram of a recording without padding, and the words that `transcribe` finds."""
    audio: AudioProcessor = read.reader("audio")
    inputs = audio([path], padding="longest", truncation=False, return_attention_mask=True)
    real = int(inputs.pop("attention_mask").sum())
    (features,) = inputs.values()
    features = features[0, :, :real] if audio.kind == "mel" else features[0, :real]
    hop = audio.sampling_rate // 100 if audio.kind == "values" else audio.hop_length
    power = power_of(audio, features)
    high, unit = (len(power) * 0.04, "kHz") if audio.kind == "values" else (len(power), "mel channel")
    words = functools.partial(service("transcribe"), model, str(path), timestamps=True)
    return Sound(power, hop / audio.sampling_rate, high, unit, words)


def png(pixels: Tensor) -> str:
    """Encode bytes (C, rows, columns) as a data URL: in colour if C is 3, otherwise the first channel in grey."""
    image, file = import_optional("PIL.Image", "look", "a picture behind attention"), io.BytesIO()
    pixels = pixels.permute(1, 2, 0) if len(pixels) == 3 else pixels[0]
    image.fromarray(pixels.contiguous().numpy()).save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
