"""Draw a picture of a label or of a text, with a diffusion model or token by token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np
import torch

from anyformer.generation.diffusion import denoise
from anyformer.inputs.contact_sheet import largest_value, to_bytes, write_sheet
from anyformer.inputs.image import Images
from anyformer.models import AutoencoderModule, TransformerModule
from anyformer.objectives.batches import Batch, pad_texts
from anyformer.objectives.heads import describe_head
from anyformer.objectives.match import caption
from anyformer.parts.diffusion import NoiseHead
from anyformer.specs.messages import nearest, quote
from anyformer.tasks.image_tokens import DrawOptions, can_write, companion, draw_by_tokens
from anyformer.tasks.results import Drawn, task
from anyformer.tasks.task import Inputs, RunOptions, Source, TaskModel, TaskRun, checked_rows, open_model


@task
def draw(
    model: Source,
    inputs: Inputs,
    *,
    out: Annotated[str | Path | None, "file to write, with one row of pictures per text", "-o"] = "drawn.png",
    count: Annotated[int, "number of pictures per text"] = 1,
    seed: Annotated[int, "the same seed gives the same pictures"] = 0,
    steps: Annotated[int | None, "denoising steps of a diffusion model (default: 50)"] = None,
    guidance: Annotated[
        float | None, "classifier-free guidance; above 1 follows the label more closely (default: 4)"
    ] = None,
    eta: Annotated[float | None, "share of new noise at each step: 0 is DDIM, 1 is DDPM (default: 0)"] = None,
    temperature: Annotated[float | None, "sampling temperature of a model that draws token by token"] = None,
    top_k: Annotated[int | None, "sample from the N most likely tokens (models that draw token by token)"] = None,
    **run_options: Unpack[RunOptions],
) -> Drawn:
    """Return {"text", "count", "file"} for each text, whose pictures are one row of the file. If `out` is None, return
    {"text", "pictures"} with (count, H, W, C) bytes. The same seed gives the same pictures.

    >>> draw("a/model/folder", ["ankle boot", "bag"], out="sheet.png", count=8)  # doctest: +SKIP
    """
    rows, one = checked_rows("draw", inputs)
    if count < 1:
        raise ValueError(f"count is {count}; it must be at least 1")
    if out is not None and not Path(out).expanduser().parent.is_dir():
        raise ValueError(f"{out}: no such folder")
    reader = open_model(model, **run_options)
    draw_pictures = next((method for can, method in METHODS if can(reader.model)), None)
    if draw_pictures is None:
        kinds = "a DiT, or a decoder with an autoencoder in its folder"
        raise ValueError(f"draw needs a model that draws, {kinds}; this one has {describe_head(reader.model)}")
    seeds = [seed + i for i in range(count)]

    def finish(run: TaskRun, texts: list[str]) -> list[Any]:
        pictures = draw_pictures(run.reader, DrawOptions(texts, seeds, steps, guidance, eta, temperature, top_k))
        return [{"text": text, "pictures": own} for text, own in zip(texts, pictures, strict=True)]

    answers: Any = TaskRun("draw", reader, rows, one).answer(lambda row: row["text"], finish)
    results: Any = [answers] if one else answers
    drawn_rows = [result["pictures"] for result in results if "pictures" in result]
    if out is None or not drawn_rows:
        return answers
    blank = np.full_like(drawn_rows[0], 255)  # the row of a text that has an error
    write_sheet(Path(out).expanduser(), [result.get("pictures", blank) for result in results])
    results = [{"text": r["text"], "count": count, "file": str(out)} if "pictures" in r else r for r in results]
    return results[0] if one else results


# -- diffusion --------------------------------------------------------------------------------------------------------


def can_denoise(model: TransformerModule) -> bool:
    return isinstance(model.spec.head, NoiseHead)


def label_number(labels: tuple[str, ...], number: int, text: str) -> int:
    """Return the index of a label by name, ignoring case; if labels have no names, by its number."""
    names = labels or tuple(map(str, range(number)))
    # a published label can be several names with commas; each is accepted unless another label has it
    pieces = {piece.strip().casefold(): i for i, name in enumerate(names) for piece in name.split(",")}
    by_name = {**pieces, **{name.casefold(): i for i, name in enumerate(names)}}
    if text.strip().casefold() not in by_name:
        raise ValueError(f"the model has no label {quote(text)}; {nearest(text.strip(), names)}")
    return by_name[text.strip().casefold()]


def latent_autoencoder(model: TransformerModule) -> AutoencoderModule | None:
    """Return the autoencoder whose latent space a model draws in; None if it draws pixels."""
    embedding = getattr(model.spec, model.spec.target)
    vae, draws = companion(model), (embedding.channels, *embedding.image_size)
    if vae is not None and (vae.spec.latent.discrete or not vae.spec.draws(draws)):
        latents = vae.spec.numbers or "codes"
        raise ValueError(f"{model.folder}: the model draws {draws}, but its autoencoder produces {latents}")
    return vae


def label_inputs(spec: Any, texts: list[str]) -> tuple[Batch, Batch]:
    """Return the model's inputs for labels, and without a label."""
    if (number := spec.embedding.condition.num_labels) is None:
        raise ValueError("this model draws from a text encoder's states and has no labels; use denoise in Python")
    labels = torch.tensor([label_number(spec.labels, number, text) for text in texts])
    return {"class_labels": labels}, {"class_labels": torch.full_like(labels, number)}


def text_inputs(reader: TaskModel, texts: list[str]) -> tuple[Batch, Batch]:
    """Return the model's inputs for texts, and for empty texts of the same shape."""
    assert reader.tokenizer is not None
    length = reader.model.spec.embedding.max_length
    rows = [caption(text, reader.tokenizer, length) for text in texts]
    records = [{"input_ids": ids} for ids in (*rows, *(row[-1:] for row in rows))]  # an empty text is its end token
    batch = pad_texts(records, reader.tokenizer.filler)
    both = [value.split(len(texts)) for value in batch.values()]
    conditional, unconditional = (dict(zip(batch, part, strict=True)) for part in zip(*both, strict=True))
    return conditional, unconditional


def draw_by_diffusion(reader: TaskModel, options: DrawOptions) -> list[np.ndarray]:
    """Draw pictures of labels or texts by diffusion, of pixels or of an autoencoder's latents."""
    options.refuse("temperature", "top_k")
    spec: Any = reader.model.spec
    texts = [text for text in options.texts for _ in options.seeds]
    conditional, unconditional = text_inputs(reader, texts) if hasattr(spec, "decoder") else label_inputs(spec, texts)
    assert reader.model.folder is not None
    images, vae = reader.images or Images.load(reader.model.folder), latent_autoencoder(reader.model)
    seeds = [seed for _ in options.texts for seed in options.seeds]
    steps = min(50, spec.head.schedule.steps) if options.steps is None else options.steps
    guidance = 4.0 if options.guidance is None else options.guidance
    pictures = []
    for start in range(0, len(seeds), reader.batch):
        part = slice(start, start + reader.batch)
        samples = denoise(
            reader.model,
            {name: value[part] for name, value in conditional.items()},
            {name: value[part] for name, value in unconditional.items()},
            seeds=seeds[part],
            steps=steps,
            guidance=guidance,
            eta=options.eta or 0.0,
            clip=largest_value(images) if vae is None else None,
        )
        with torch.no_grad():
            pictures.append(to_bytes(samples if vae is None else vae.picture(samples), images))
        reader.progress(min(start + reader.batch, len(seeds)), len(seeds))
    return np.split(np.concatenate(pictures), len(options.texts))


# (whether a model can draw this way, the function that draws: one (count, H, W, C) array of bytes per text)
METHODS: tuple[
    tuple[Callable[[TransformerModule], bool], Callable[[TaskModel, DrawOptions], list[np.ndarray]]], ...
] = ((can_denoise, draw_by_diffusion), (can_write, draw_by_tokens))
