"""Conversion of raw data to model inputs and back: text, and images and audio if the folder has settings for them.

>>> read = processor("a/model/folder")  # doctest: +SKIP
>>> model(**read(["A dog.", "Two of them."]))  # doctest: +SKIP
>>> read.decode(ids)  # doctest: +SKIP
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from anyformer.checkpoint import read_spec
from anyformer.inputs.audio_features import KINDS, AudioProcessor
from anyformer.inputs.image import Images
from anyformer.inputs.tokenizer import Tokenizer, as_lists
from anyformer.models import TowerDecoderModel, TowerEncoderModel
from anyformer.parts.embedding.waveform import SegmentEmbedding
from anyformer.specs.messages import amount, quote
from anyformer.weights import hub
from anyformer.weights.io import read_json

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_values

    import torch
    from torch import Tensor

Inputs = dict[str, "Tensor"]


InputName = Literal[
    "input_ids", "attention_mask", "token_type_ids", "pixel_values", "input_values", "input_features", "labels"
]


class ModelInputs(dict[str, Any]):
    """Tensors by the names of a model's inputs: `model(**inputs)`.

    With a dict[str, Tensor], type checkers refuse `generate(model, **inputs)`: its other keywords are not tensors."""

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, name: InputName, /) -> Tensor: ...
        @overload
        def __getitem__(self, name: str, /) -> Any: ...  # `**inputs` has this type
        def __getitem__(self, name: str, /) -> Any: ...

        def items(self) -> dict_items[str, Tensor]: ...

        def values(self) -> dict_values[str, Tensor]: ...

    def to(self, device: str | torch.device) -> ModelInputs:
        """Return the inputs on a device."""
        return ModelInputs({name: tensor.to(device) for name, tensor in self.items()})


class MediaReader(NamedTuple):
    """Reads images or audio."""

    has_settings: Callable[[Path], bool]  # whether a model folder has its settings
    load: Callable[[Path], Callable[..., Inputs]]  # folder -> reader: data -> tensors by name


def settings_in(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the settings for images and audio in a folder, one dict each."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            config = read_json(folder / name)
            yield from (config, *(part for part in config.values() if isinstance(part, dict)))


def is_audio(config: dict[str, Any]) -> bool:
    return "sampling_rate" in config or str(config.get("feature_extractor_type")) in KINDS


PICTURES = {"image_processor_type", "image_mean", "size"}  # one of these fields is in all settings for pictures
# keyword of the data -> reader
READERS: dict[str, MediaReader] = {
    "images": MediaReader(lambda folder: any(PICTURES & c.keys() for c in settings_in(folder)), Images.load),
    "audio": MediaReader(lambda folder: any(is_audio(c) for c in settings_in(folder)), AudioProcessor.load),
}


class Placeholders(NamedTuple):
    """The placeholder tokens of a picture or recording in a text: one token per vector (LLaVA)."""

    token: str
    count: Callable[[Tensor], int]  # number of vectors per picture (M, C, H, W) or recording (M, C, frames)

    @classmethod
    def from_folder(cls, folder: Path, name: str, tokenizer: Tokenizer) -> Placeholders | None:
        """Return the placeholders for the keyword `name`, from the folder's settings or description, or None."""
        for config in settings_in(folder) if name == "images" else ():
            if isinstance(patch := config.get("patch_size"), int) and "vision_feature_select_strategy" in config:
                more, token = config.get("num_additional_image_tokens") or 0, config.get("image_token") or "<image>"
                if not isinstance(more, int) or not isinstance(token, str):
                    what = "num_additional_image_tokens must be an integer and image_token a string"
                    raise ValueError(f"{folder}: {what}, got {quote(more)} and {quote(token)}")
                more -= int(config["vision_feature_select_strategy"] == "default")
                return cls(token, functools.partial(patches, patch, more))
        try:
            spec = read_spec(folder)
        except (ValueError, OSError):  # no model, or an unknown one
            return None
        tower = spec.input_towers.get(TOWERS[name]) if isinstance(spec, TowerDecoderModel | TowerEncoderModel) else None
        if tower is None or (token := tokenizer.token(tower.token)) is None:
            return None
        embedding = tower.model.embedding
        count = embedding.frames if isinstance(embedding, SegmentEmbedding) else embedding.vectors
        return cls(token, lambda given: tower.projector.count(count(given.shape[-1]) - tower.skip))

    def expand(self, texts: Sequence[str], given: Tensor, what: str) -> list[str]:
        """Repeat the token of each picture or recording in the texts once per vector."""
        if (number := sum(text.count(self.token) for text in texts)) != len(given):
            raise ValueError(
                f"the text contains {self.token} {amount(number, 'time')}, but {len(given)} {what} are given"
            )
        return [text.replace(self.token, self.token * self.count(given)) for text in texts]


def patches(patch: int, more: int, pixels: Tensor) -> int:
    return (pixels.shape[2] // patch) * (pixels.shape[3] // patch) + more


TOWERS = {"images": "image", "audio": "audio"}  # keyword -> field of the model
CALLED = {"images": "pictures", "audio": "sounds"}


def processor(name: str | Path, *, offline: bool = False) -> Processor:
    """Return the processor of a model folder or hub id."""
    folder = hub.resolve(name, offline=offline)
    media = tuple(given for given, reader in READERS.items() if reader.has_settings(folder))
    try:
        return Processor(folder, Tokenizer.load(folder), media)
    except (ValueError, OSError) as error:
        if not media:
            raise
        # images and audio need no tokenizer: raise its error only if a text is given
        return Processor(folder, None, media, None if isinstance(error, FileNotFoundError) else error)


class Processor:
    """Converts texts, and images and audio if the folder has settings for them, to model inputs."""

    def __init__(
        self, folder: Path, tokenizer: Tokenizer | None, media: tuple[str, ...] = (), error: Exception | None = None
    ) -> None:
        """`error` is the reason why the folder's tokenizer could not be read."""
        self.folder, self._tokenizer, self.media, self._error = folder, tokenizer, media, error
        self._readers: dict[str, Callable[..., Inputs]] = {}

    def __repr__(self) -> str:
        kinds = [f"{len(self._tokenizer):,} tokens"] if self._tokenizer is not None else []
        return f"Processor({str(self.folder)!r}: {', '.join([*kinds, *self.media])})"

    @property
    def tokenizer(self) -> Tokenizer:
        if self._error is not None:
            raise ValueError(f"the tokenizer cannot be read: {self._error}")
        if self._tokenizer is None:
            raise ValueError(f"{self.folder} has no tokenizer; it reads {' and '.join(self.media)}")
        return self._tokenizer

    def __call__(
        self,
        text: str | Sequence[str] | None = None,
        text_pair: str | Sequence[str] | None = None,
        *,
        images: Any = None,
        audio: Any = None,
        padding: bool | Literal["longest", "max_length"] = True,
        truncation: bool = False,
        max_length: int | None = None,
        padding_side: str | None = None,
        pad_to_multiple_of: int | None = None,
        add_special_tokens: bool = True,
        **settings: Any,
    ) -> ModelInputs:
        """Return the model inputs, with transformers' names. One text is a batch of one.

        Texts are padded to the longest (`padding="max_length"`: to max_length; False: they must have equal lengths),
        and cut to max_length with `truncation`. `settings` (sampling_rate, ...) are for the image or audio reader."""
        out: Inputs = {}
        tensors: dict[str, Inputs] = {}
        given = {name: value for name, value in (("images", images), ("audio", audio)) if value is not None}
        if text is None and not given:
            raise ValueError("no input: pass a text or a list of texts")
        for name, value in given.items():
            if name not in self.media:
                reads = " and ".join([*(["text"] if self._tokenizer is not None else []), *self.media])
                raise ValueError(f"{name} cannot be read: {self.folder} has only settings for {reads}")
            tensors[name] = self.reader(name)(value, **settings)
            out |= tensors[name]
        if settings and not given:
            raise ValueError(f"unknown setting {quote(next(iter(settings)))} for a text")
        if text is None:
            return ModelInputs(out)
        longest = max_length if max_length is not None else self.tokenizer.max_length
        if padding not in (True, False, "longest", "max_length"):
            raise ValueError(f"padding={quote(padding)}; valid: True, False, 'longest', 'max_length'")
        if max_length is not None and not truncation and padding != "max_length":
            raise ValueError("max_length has no effect without truncation=True or padding='max_length'")
        if longest is None and (truncation or padding == "max_length"):
            raise ValueError("pass max_length, because this tokenizer has no maximal length")
        texts = [text] if isinstance(text, str) else list(text)
        pairs = [text_pair] if isinstance(text_pair, str) else text_pair
        placed = False
        for name in given:
            if (tokens := Placeholders.from_folder(self.folder, name, self.tokenizer)) is not None:
                texts = tokens.expand(texts, next(iter(tensors[name].values())), CALLED[name])
                out.pop("attention_mask", None)  # of the audio: the model also reads its padding
                placed = placed or name == "audio"
        encoded = self.tokenizer.batch(
            texts,
            pairs,
            padding_side=padding_side,
            max_length=longest if truncation else None,
            add_special_tokens=add_special_tokens,
            padding=padding is not False,
            at_least=longest or 0 if padding == "max_length" else 0,
            multiple=pad_to_multiple_of or 1,
        )
        if audio is not None and not placed:  # the text is the transcript that the model should learn
            return ModelInputs({**out, "labels": encoded["input_ids"]})
        return ModelInputs({**encoded, **out})

    def reader(self, name: str) -> Any:
        """Return the reader of images or audio for this folder, or None."""
        if name not in self._readers and name in self.media:
            self._readers[name] = READERS[name].load(self.folder)
        return self._readers.get(name)

    @overload
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...
    @overload
    def decode(self, ids: Sequence[Sequence[int]], *, skip_special_tokens: bool = False) -> list[str]: ...
    @overload
    def decode(self, ids: object, *, skip_special_tokens: bool = False) -> str | list[str]: ...
    def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> Any:
        """Return the text of ids, or a list of texts for rows of ids. For colour tokens (ImageGPT), return pictures."""
        if self._tokenizer is None and isinstance(images := self.reader("images"), Images) and images.clusters:
            return images.decode_colours(ids)
        ids = as_lists(ids)
        if isinstance(ids, Sequence) and ids and not isinstance(ids[0], int):
            return self.batch_decode(ids, skip_special_tokens=skip_special_tokens)
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, rows: Any, *, skip_special_tokens: bool = False) -> list[str]:
        return self.tokenizer.batch_decode(rows, skip_special_tokens=skip_special_tokens)

    def chat(self, messages: Sequence[dict[str, Any]], **options: Any) -> ModelInputs:
        """Return the model inputs of a conversation, with the folder's chat template; see `chat.encode`."""
        import torch

        ids = torch.tensor([self.tokenizer.chat(messages, **options)])
        return ModelInputs({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
