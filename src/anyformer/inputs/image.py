"""Image preprocessing as configured in a checkpoint's preprocessor_config.json, with the same results as transformers'
processors that use PIL.

H height, W width, C channels.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer import families
from anyformer.families.base.fields import UnknownFieldWarning
from anyformer.specs.messages import nearest, quote, shorten
from anyformer.specs.part import Part, Table, hints, thaw
from anyformer.weights.io import read_json, write_json

FILE, WHOLE = "preprocessor_config.json", "processor_config.json"
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff")
HALF, CLIP_MEAN, CLIP_STD = (0.5,) * 3, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
PIXELS = 89_478_485  # PIL's limit; larger files may be decompression bombs
BILINEAR, BICUBIC = 2, 3  # PIL's filters from 0: nearest, Lanczos, bilinear, bicubic, box, Hamming
SQUEEZED = 384  # sizes from here on are resized to a square without cropping, despite `crop_pct` (ConvNeXT)

Size = Mapping[str, int]


def square(side: int) -> Size:
    return {"height": side, "width": side}


# defaults of fields that a file omits, by kind of processor
CROPPED = {"do_center_crop": True, "crop_size": square(224), "resample": BICUBIC}
SHORTEST = {"size": {"shortest_edge": 224}, "image_mean": CLIP_MEAN, "image_std": CLIP_STD, "do_convert_rgb": True}
KINDS: dict[str, dict[str, Any]] = {
    "ViT": {},
    "DeiT": {**CROPPED, "size": square(256)},
    "CLIP": {**CROPPED, **SHORTEST},
    "Bit": {**CROPPED, **SHORTEST},
    "Siglip": {"resample": BICUBIC, "do_convert_rgb": True},
    "Llava": {**CROPPED, **SHORTEST},
    "ConvNext": {"size": {"shortest_edge": SQUEEZED}, "resample": BICUBIC, "crop_pct": 224 / 256},
    "ImageGPT": {"size": square(256), "do_color_quantize": True},
}
SHORT = ("CLIP", "Bit", "Siglip", "Llava", "ConvNext")  # for these, a size of one number is the shorter side
# fields that only one kind has, and fields that a kind lacks (Llava's do_pad means `pad_to_square`)
OWN = {"do_color_quantize": "ImageGPT", "clusters": "ImageGPT", "crop_pct": "ConvNext", "pad_to_square": ""}
LACKS = {"ImageGPT": ("do_center_crop", "do_pad"), "ConvNext": ("do_pad",), "Llava": ("do_pad",)}
# fields that have no effect here
INERT = {
    "image_processor_type", "feature_extractor_type", "processor_class", "_processor_class", "data_format",
    "input_data_format", "device", "return_tensors", "disable_grouping", "_valid_processor_keys", "default_to_square",
    "image_seq_length", "model_input_names", "use_square_size", "auto_map", "name_or_path", "transformers_version",
}  # fmt: skip


class Images(Part):
    """Reads pictures: files, folders, PIL images, arrays (H, W), (H, W, C) or (C, H, W), tensors, and lists of them.
    With `clusters`, each pixel becomes a token: the index of the nearest colour (ImageGPT).

    >>> read = Images(size={"height": 4, "width": 4})
    >>> read(np.zeros((9, 6, 3), np.uint8))["pixel_values"].shape
    torch.Size([1, 3, 4, 4])"""

    do_convert_rgb: bool = False
    do_resize: bool = True
    size: Size = Table(square(224))
    resample: int = BILINEAR
    do_center_crop: bool = False
    crop_size: Size | None = None
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: float | tuple[float, ...] = HALF
    image_std: float | tuple[float, ...] = HALF
    do_pad: bool = False
    pad_size: Size | None = None  # default: the largest picture of the batch
    crop_pct: float | None = None  # share of the shorter side that remains after cropping (ConvNeXT, ResNet)
    pad_to_square: bool = False  # before resizing, with the mean colour (LLaVA)
    do_color_quantize: bool = False
    clusters: tuple[tuple[float, ...], ...] | None = None  # colours, normalized like pixels

    def check(self) -> None:
        colours = {len(colour) for colour in self.clusters or ()}
        if (self.do_color_quantize or self.clusters is not None) and colours != {3}:
            raise ValueError("clusters must be a list of colours, three numbers each")
        if self.do_resize:
            target_size(self.size, 8, 8)
        if self.crop_pct is not None and not (self.crop_pct > 0 and self.size.get("shortest_edge")):
            raise ValueError(f"crop_pct needs a size with shortest_edge; size is {quote(dict(self.size))}")
        for name, wanted, needed in (
            ("crop_size", self.crop_size, self.do_center_crop),
            ("pad_size", self.pad_size, self.pad_size is not None),
        ):
            if needed and not (wanted and wanted.get("height") and wanted.get("width")):
                raise ValueError(f"{name} needs height and width, got {quote(thaw(wanted))}")
            check_pixels(*(wanted or {}).values())
        if self.resample not in range(6):
            raise ValueError(f"resample is {quote(self.resample)}; PIL numbers its filters from 0 to 5")
        if self.do_normalize and not np.all(np.asarray(self.image_std)):
            raise ValueError(f"image_std is {quote(self.image_std)}; none of its numbers may be 0")

    @staticmethod
    def has_settings(folder: Path) -> bool:
        """Whether a model folder has settings for pictures."""
        return any((folder / name).is_file() for name in (FILE, WHOLE))

    @classmethod
    def load(cls, folder: str | Path, **changes: Any) -> Images:
        """Load the settings of a model folder; `changes` override fields."""
        path, whole = Path(folder) / FILE, Path(folder) / WHOLE
        config = read_json(path) if path.is_file() else None
        if config is None and whole.is_file():  # recent processors are saved in one file
            path, config = whole, read_json(whole).get("image_processor")
        if not isinstance(config, dict):
            raise ValueError(f"{folder}: no {FILE} with settings for pictures")
        return cls.from_config({**config, **changes}, str(path), default_kind(Path(folder)))

    @classmethod
    def from_config(cls, config: Mapping[str, Any], name: str = FILE, default: str = "ViT") -> Images:
        """Create it from the contents of a preprocessor_config.json. `name` is for error messages; `default` is the
        kind of processor if the file names none."""
        kind = str(config.get("image_processor_type") or config.get("feature_extractor_type") or default)
        kind = kind.removesuffix("Fast").removesuffix("Pil").removesuffix("ImageProcessor")
        kind = kind.removesuffix("FeatureExtractor")
        if kind not in KINDS:
            raise ValueError(f"{name}: image processor {quote(kind)} is not supported; {nearest(kind, KINDS)}")
        fields = {field for field in hints(cls) if OWN.get(field, kind) == kind}
        if ignored := sorted(map(str, config.keys() - fields - INERT)):
            unknown = shorten(", ".join(ignored))
            warnings.warn(f"{name}: ignored unknown fields {unknown}", UnknownFieldWarning, stacklevel=3)
        # as in transformers, a boolean that is null is False, and any other null field is ignored
        off = {key for key, hint in hints(cls).items() if hint is bool}
        values = {key: value for key, value in config.items() if key in fields and (value is not None or key in off)}
        values |= {key: False for key in off if key in values and values[key] is None}
        short = kind in SHORT if config.get("default_to_square") is None else not config["default_to_square"]
        if kind == "CLIP" and config.get("use_square_size"):
            values["size"] = square(224)  # as in transformers, this overrides the file's size
        if kind == "Llava":
            values["pad_to_square"] = values.get("do_pad", False)
        try:
            for key in values.keys() & {"size", "crop_size", "pad_size"}:
                values[key] = sides(values[key], key == "size" and short, key)
            return cls(**{**KINDS[kind], **{k: v for k, v in values.items() if k not in LACKS.get(kind, ())}})
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def save(self, folder: str | Path) -> None:
        """Write a preprocessor_config.json for `load` and transformers."""
        values = {key: thaw(value) for key, value in self.items()}
        if self.pad_to_square:
            kind, values["do_pad"] = "Llava", True
        else:
            kind = "ImageGPT" if self.clusters else "ViT" if self.crop_pct is None else "ConvNext"
        values = {key: value for key, value in values.items() if OWN.get(key, kind) == kind}
        write_json(Path(folder) / FILE, {"image_processor_type": f"{kind}ImageProcessor", **values})

    @property
    def channels(self) -> int | None:
        """Number of channels that a picture must have, or None if any number is allowed."""
        if self.do_convert_rgb:
            return 3
        return len(self.image_mean) if self.do_normalize and isinstance(self.image_mean, tuple) else None

    def __call__(self, images: Any) -> dict[str, Tensor]:
        """Return {"pixel_values": (N, C, H, W)} of one or several pictures, or {"input_ids": (N, H W)} of colours."""
        arrays = [self.one(picture, name) for picture, name in pictures(images)]
        if not arrays:
            raise ValueError("images is empty: pass at least one picture")
        if self.do_pad:
            arrays = [pad(pixels, self.pad_size or largest(arrays)) for pixels in arrays]
        shapes = {pixels.shape for pixels in arrays}
        if len(shapes) > 1:
            kinds = " and ".join(str(shape) for shape in sorted(shapes)[:2])
            raise ValueError(f"pictures of several shapes, {kinds}: read them one by one, or crop or pad them")
        if self.do_color_quantize:
            return {"input_ids": torch.from_numpy(np.stack([self.colours(pixels) for pixels in arrays]))}
        return {"pixel_values": torch.from_numpy(np.stack(arrays))}

    def colours(self, pixels: np.ndarray) -> np.ndarray:
        """Return the index of the nearest colour for each pixel: (C, H, W) -> (H W,)."""
        colours = np.asarray(self.clusters)  # (K, 3)
        apart = -2 * pixels.reshape(3, -1).T.astype(np.float64) @ colours.T + np.square(colours).sum(1)
        return apart.argmin(1)

    def decode_colours(self, ids: Any) -> np.ndarray:
        """Return the pictures (..., H, W, 3) in bytes, given colour tokens (..., H W)."""
        ids, colours = np.asarray(ids), np.asarray(self.clusters)
        H, W = target_size(self.size, 1, 1)
        if not self.clusters or ids.dtype.kind not in "iu" or ids.shape[-1:] != (H * W,):
            raise ValueError(f"a picture of {H} x {W} colours needs {H * W} ids, got {ids.shape}")
        if ids.min() < 0 or ids.max() >= len(colours):
            raise ValueError(f"colours are numbered from 0 to {len(colours) - 1}, got {ids.min()} to {ids.max()}")
        pixels = colours * np.asarray(self.image_std) + np.asarray(self.image_mean) if self.do_normalize else colours
        pixels = pixels / self.rescale_factor if self.do_rescale else pixels
        return pixels.round().clip(0, 255).astype(np.uint8)[ids].reshape(*ids.shape[:-1], H, W, 3)

    def resize(self, picture: Any) -> np.ndarray:
        """Resize and crop one picture: (C, H, W). Bytes stay bytes."""
        image, name = single_picture(picture)
        with error_context(name):
            return self._resize_and_crop(image)

    def _resize_and_crop(self, image: Any) -> np.ndarray:
        pixels = array(image, self.channels)
        if self.pad_to_square:
            pixels = pad_square(pixels, self.image_mean)
        if self.do_resize:
            size, side = self.size, self.size.get("shortest_edge", 0)
            if self.crop_pct is not None:
                size = {"shortest_edge": int(side / self.crop_pct)} if side < SQUEEZED else square(side)
            pixels = resize(pixels, target_size(size, *pixels.shape[1:]), self.resample)
            if self.crop_pct is not None:
                pixels = center_crop(pixels, square(side))
        if self.do_center_crop and self.crop_size is not None:
            pixels = center_crop(pixels, self.crop_size)
        return pixels

    def one(self, picture: Any, name: str = "") -> np.ndarray:
        """Preprocess one picture: (C, H, W) in fp32."""
        image, file = single_picture(picture)
        with error_context(name or file):
            pixels = self._resize_and_crop(image)
            if self.do_rescale:
                if pixels.dtype.kind == "f" and 0 < pixels.max() <= 1:
                    raise ValueError("its numbers are already between 0 and 1; pass bytes, or set do_rescale=False")
                pixels = (pixels.astype(np.float64) * self.rescale_factor).astype(np.float32)
            pixels = pixels.astype(np.float32, copy=False)
            if self.do_normalize:
                mean, std = (np.asarray(v, np.float32).reshape(-1, 1, 1) for v in (self.image_mean, self.image_std))
                if not {len(mean), len(std)} <= {1, len(pixels)}:
                    raise ValueError(f"it has {len(pixels)} channels, but image_mean {len(mean)}, image_std {len(std)}")
                pixels = (pixels - mean) / std
        return np.ascontiguousarray(pixels)


@contextlib.contextmanager
def error_context(name: str) -> Iterator[None]:
    """Prefix errors with the picture's name, if it has one."""
    try:
        yield
    except ValueError as error:
        raise error if not name else ValueError(f"{name}: {error}") from None


def default_kind(folder: Path) -> str:
    """Return the model's usual kind of processor, for a folder whose files name none."""
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    try:
        return families.find(str(config.get("model_type"))).pictures
    except ValueError:  # no model, or an unknown one
        return "ViT"


# -- reading pictures -------------------------------------------------------------------------------------------------


def pictures(images: Any, name: str = "") -> Iterator[tuple[Any, str]]:
    """Yield (PIL image or array, its name for error messages); opens files."""
    if isinstance(images, str | Path):
        path = Path(images).expanduser()
        if path.is_dir():
            for file in files(path):
                yield open_picture(file), str(file)
        else:
            yield open_picture(path), str(path)
    elif isinstance(images, Tensor | np.ndarray):
        pixels = images.detach().cpu().numpy() if isinstance(images, Tensor) else images
        several = pixels.ndim == 4
        for i, each in enumerate(pixels if several else [pixels], 1):
            yield each, f"picture {i}" if several else name
    elif is_pil(images):
        yield images, str(getattr(images, "filename", "") or name)
    elif isinstance(images, Iterable) and not isinstance(images, bytes | Mapping):
        for i, each in enumerate(images, 1):
            yield from pictures(each, f"picture {i}")
    else:
        raise ValueError(f"expected a picture: a file, folder, PIL image, array or tensor; got {kind_of(images)}")


def is_pil(picture: Any) -> bool:
    """Whether this is a PIL image; does not import PIL."""
    return hasattr(picture, "convert")


def single_picture(picture: Any) -> tuple[Any, str]:
    """Return the only picture in `picture`, and its name for error messages."""
    given = list(pictures(picture))
    if len(given) != 1:
        raise ValueError(f"expected one picture, got {len(given)}")
    return given[0]


def files(folder: Path) -> list[Path]:
    """Return the picture files in a folder and its subfolders, sorted."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    if not paths:
        raise ValueError(f"{folder}: no pictures in this folder ({', '.join(ENDINGS)})")
    return paths


def kind_of(value: Any) -> str:
    return type(value).__name__


def pillow() -> Any:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ValueError("pictures need Pillow: pip install 'anyformer[image]'") from None
    return Image, ImageOps


def open_picture(path: Path) -> Any:
    """Open a file as a PIL image, rotated upright; the first frame of an animation. Every error is one line."""
    Image, ImageOps = pillow()
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    if not path.stat().st_size:
        raise ValueError(f"{path}: the file is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                image.load()
                return ImageOps.exif_transpose(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ValueError(f"{path}: more than {PIXELS:,} pixels; make it smaller first") from None
    except Exception as error:  # a damaged file can make PIL raise any error
        reason = "not a picture that can be read" if isinstance(error, Image.UnidentifiedImageError) else error
        raise ValueError(f"{path}: {str(reason).splitlines()[0] if str(reason) else kind_of(error)}") from None


def array(picture: Any, channels: int | None) -> np.ndarray:
    """Return an array (C, H, W) with `channels` channels: converts between colour and grey, and drops alpha."""
    if is_pil(picture):
        picture = np.asarray(eight_bits(picture, channels))
        picture = picture[None] if picture.ndim == 2 else np.moveaxis(picture, -1, 0)
    elif picture.ndim == 2:
        picture = picture[None]
    elif picture.ndim == 3 and picture.shape[0] not in (1, 3, 4) and picture.shape[2] in (1, 3, 4):
        picture = np.moveaxis(picture, -1, 0)
    if picture.ndim != 3 or picture.shape[0] not in (1, 3, 4, channels) or 0 in picture.shape:
        raise ValueError(f"an array of shape {quote(picture.shape)} is not a picture with 1, 3 or 4 channels")
    if picture.dtype == bool:
        picture = picture.astype(np.uint8) * 255
    if picture.dtype.kind not in "uif" or (picture.dtype.kind == "f" and not np.isfinite(picture).all()):
        kind = "numbers that are not finite" if picture.dtype.kind == "f" else f"numbers of dtype {picture.dtype}"
        raise ValueError(f"it contains {kind}")
    if channels is None or len(picture) == channels:
        return picture
    if channels == 3:
        return np.repeat(picture, 3, axis=0) if len(picture) == 1 else picture[:3]
    if channels == 1 and picture.dtype == np.uint8:
        return np.asarray(pillow()[0].fromarray(np.moveaxis(picture[:3], 0, -1)).convert("L"))[None]
    raise ValueError(f"it has {len(picture)} channels, but the model reads {channels}")


def eight_bits(image: Any, channels: int | None) -> Any:
    """Convert a PIL image to one byte per channel, in colour or grey as the model needs it."""
    if image.mode.startswith("I"):  # more than 8 bits: keep the highest
        pixels = np.asarray(image).astype(np.int64)
        if pixels.min(initial=0) < 0 or pixels.max(initial=0) > 65535:
            ends = f"{pixels.min()} to {pixels.max()}"
            raise ValueError(f"its pixels range from {ends}, more than 16 bits; convert it to 8 bits")
        image = pillow()[0].fromarray((pixels // 257).astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("its pixels are floating-point numbers (mode F); convert it to 8 bits")
    plain = {1: ("L",), 3: ("RGB",)}.get(channels or 0, ("L", "RGB", "RGBA"))
    return image if image.mode in plain else image.convert("L" if plain == ("L",) else "RGB")


# -- sizes ------------------------------------------------------------------------------------------------------------


def sides(value: Any, short: bool, name: str) -> Size:
    """Convert a size from old files (one number, or height and width) to a dict."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"shortest_edge": value} if short else square(value)
    if isinstance(value, list | tuple) and len(value) == 2:
        return {"height": value[0], "width": value[1]}
    if not isinstance(value, Mapping) or not all(type(side) is int and side > 0 for side in value.values() if side):
        raise ValueError(f"{name} is {quote(value)}; it must be a number of pixels, or an object like {square(224)}")
    return {key: side for key, side in value.items() if side is not None}


def target_size(size: Size, height: int, width: int) -> tuple[int, int]:
    """Return the (H, W) to which a picture of `height` x `width` is resized."""
    match {key: side for key, side in size.items() if side}:
        case {"shortest_edge": short, "longest_edge": longest}:
            return limited_size(height, width, short, longest)
        case {"shortest_edge": short}:
            long = int(short * max(height, width) / min(height, width))
            scaled = (long, short) if width <= height else (short, long)
        case {"max_height": most, "max_width": widest}:
            scale = min(most / height, widest / width)
            scaled = int(height * scale), int(width * scale)
        case {"height": rows, "width": columns}:
            scaled = rows, columns
        case _:
            valid = "height and width, shortest_edge, or max_height, max_width"
            raise ValueError(f"size is {quote(dict(size))}; it must have {valid}")
    return scaled


def check_pixels(*size: int) -> None:
    if math.prod(size) > PIXELS:
        raise ValueError(f"{' x '.join(f'{side:,}' for side in size)} pixels are more than {PIXELS:,}")


def limited_size(height: int, width: int, short: int, longest: int) -> tuple[int, int]:
    """Return the (H, W) whose shorter side is `short`, or less if the longer side would exceed `longest`."""
    exact: float = short
    if max(height, width) / min(height, width) * short > longest:
        exact = longest * min(height, width) / max(height, width)
        short = round(exact)
    if min(height, width) == short:
        return height, width
    long = int(exact * max(height, width) / min(height, width))
    return (long, short) if width < height else (short, long)


def resize(pixels: np.ndarray, size: tuple[int, int], resample: int) -> np.ndarray:
    """Resize (C, H, W) with PIL. Fractions from 0 to 1 are converted to bytes and back, because PIL resizes bytes."""
    check_pixels(*size)
    if min(size) < 1:
        raise ValueError(f"{pixels.shape[1]} x {pixels.shape[2]} pixels cannot be scaled to {size[0]} x {size[1]}")
    fractions = pixels.dtype != np.uint8 and not np.allclose(pixels, pixels.astype(int))
    if pixels.dtype != np.uint8 and not 0 <= pixels.min() <= pixels.max() <= (1 if fractions else 255):
        raise ValueError(
            f"its numbers range from {pixels.min():.6g} to {pixels.max():.6g}; pass bytes, or fractions from 0 to 1"
        )
    if fractions:
        pixels = (pixels.astype(np.float64) * 255).astype(np.float32)
    Image, _ = pillow()
    planes = np.moveaxis(pixels.astype(np.uint8), 0, -1)
    image = Image.fromarray(planes[..., 0] if planes.shape[-1] == 1 else planes)
    resized = np.asarray(image.resize(size[::-1], resample=resample))
    resized = resized[None] if resized.ndim == 2 else np.moveaxis(resized, -1, 0)
    return (resized.astype(np.float64) / 255).astype(np.float32) if fractions else resized


def center_crop(pixels: np.ndarray, size: Size) -> np.ndarray:
    return middle(middle(pixels, size["height"], 1), size["width"], 2)


def middle(pixels: np.ndarray, wanted: int, axis: int) -> np.ndarray:
    """Crop an axis to its middle, or pad it with zeros if it is too short."""
    length = pixels.shape[axis]
    if wanted > length:
        before = math.ceil((wanted - length) / 2)
        around = [(0, 0)] * 3
        around[axis] = (before, wanted - length - before)
        return np.pad(pixels, around)
    start = (length - wanted) // 2
    return pixels.take(range(start, start + wanted), axis)


def pad_square(pixels: np.ndarray, mean: float | tuple[float, ...]) -> np.ndarray:
    """Pad the shorter side on both ends with the colour `mean`, so that the picture is square."""
    side, (height, width) = max(pixels.shape[1:]), pixels.shape[1:]
    colour = (255 * np.asarray(mean, np.float64)).astype(int).reshape(-1, 1, 1)
    padded = np.broadcast_to(colour, (len(pixels), side, side)).astype(pixels.dtype)
    top, left = (side - height) // 2, (side - width) // 2
    padded[:, top : top + height, left : left + width] = pixels
    return padded


def largest(arrays: list[np.ndarray]) -> Size:
    return {"height": max(pixels.shape[1] for pixels in arrays), "width": max(pixels.shape[2] for pixels in arrays)}


def pad(pixels: np.ndarray, size: Size) -> np.ndarray:
    """Pad with zeros below and on the right."""
    below, right = size["height"] - pixels.shape[1], size["width"] - pixels.shape[2]
    if below < 0 or right < 0:
        raise ValueError(f"a picture of {pixels.shape[1:]} is larger than pad_size {dict(size)}")
    return np.pad(pixels, ((0, 0), (0, below), (0, right)))
