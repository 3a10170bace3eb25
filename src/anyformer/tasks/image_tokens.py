"""Draw pictures token by token (DALL-E), and load the autoencoder whose latent space a model uses."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from anyformer.checkpoint import COMPANION, load
from anyformer.generation import generate
from anyformer.inputs.contact_sheet import to_bytes
from anyformer.inputs.image import Images
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.models import AutoencoderModule, TransformerModule, position_limit
from anyformer.objectives.match import caption
from anyformer.specs.messages import quote
from anyformer.tasks.task import TaskModel


@dataclasses.dataclass(frozen=True)
class DrawOptions:
    """The options of a drawing; None is the model's default."""

    texts: list[str]
    seeds: list[int]  # one per picture of a text
    steps: int | None = None
    guidance: float | None = None
    eta: float | None = None
    temperature: float | None = None
    top_k: int | None = None

    def refuse(self, *names: str) -> None:
        """Raise ValueError if one of these options is given."""
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is not an option of this kind of model")


def companion(model: TransformerModule) -> AutoencoderModule | None:
    """Load the autoencoder in a model's folder; None if there is none."""
    if model.folder is None or not (model.folder / COMPANION).is_dir():
        return None
    vae = load(model.folder / COMPANION, dtype=torch.float32, device=model.device)
    if not isinstance(vae, AutoencoderModule):
        raise ValueError(f"{model.folder / COMPANION}: expected an autoencoder, got {type(vae.spec).__name__}")
    return vae


def can_write(model: TransformerModule) -> bool:
    """Return whether the model is a decoder with an autoencoder in its folder."""
    return model.spec.writes and model.folder is not None and (model.folder / COMPANION).is_dir()


def draw_by_tokens(reader: TaskModel, options: DrawOptions) -> list[np.ndarray]:
    """Draw pictures of captions: generate codes after the caption, and decode them with the autoencoder."""
    options.refuse("steps", "guidance", "eta")
    model, folder = reader.model, reader.model.folder
    assert folder is not None and reader.tokenizer is not None
    vae = companion(model)
    if vae is None or not vae.spec.latent.discrete:
        raise ValueError(f"{folder / COMPANION}: no autoencoder with discrete codes")
    K, N, V = vae.spec.latent.codes, math.prod(vae.spec.grid), model.spec.embedding.tokens.vocab_size
    length = (position_limit(model.spec) or 0) - N  # tokens of a caption
    if length < 1 or K >= V:
        raise ValueError(f"{folder}: a vocabulary of {V} and {length + N} positions have no room for a caption")
    prompts = [caption_ids(text, reader.tokenizer, length) for text in options.texts for _ in options.seeds]
    seeds = [seed for _ in options.texts for seed in options.seeds]
    pictures = []
    for start in range(0, len(seeds), reader.batch):
        ids = torch.stack(prompts[start : start + reader.batch]).to(model.device)
        written = generate(
            model,
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=N,
            do_sample=True,
            top_p=1.0,
            temperature=1.0 if options.temperature is None else options.temperature,
            top_k=options.top_k or 0,
            seed=seeds[start : start + reader.batch],
            eos_token_id=[],
            suppress_tokens=list(range(V - K)),
        )
        codes = written[:, length:].unflatten(1, vae.spec.grid) - (V - K)
        with torch.no_grad():
            pictures.append(to_bytes(vae.picture(codes), Images.load(folder)))
        reader.progress(min(start + reader.batch, len(seeds)), len(seeds))
    return np.split(np.concatenate(pictures), len(options.texts))


def caption_ids(text: str, tokenizer: Tokenizer, length: int) -> torch.Tensor:
    """Encode a caption, padded to (length,) as in training."""
    ids = caption(text, tokenizer)
    if len(ids) > length:
        size = f"{len(ids)} tokens with its end token"
        raise ValueError(f"{quote(text)} has {size}; this model reads at most {length}")
    return torch.tensor([*ids.tolist(), *[tokenizer.filler] * (length - len(ids))])
