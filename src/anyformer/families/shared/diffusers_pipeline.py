"""Pipelines of diffusers: a folder with a model_index.json, and in it a folder for each of several models. That of a
DiTPipeline is the transformer; how its noise grows stands with the scheduler, what its labels are in the index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.specs.messages import quote
from anyformer.specs.part import nearest

INDEX = "model_index.json"
MODEL, SCHEDULER = "transformer/config.json", "scheduler/scheduler_config.json"
KNOWN = ("DiTPipeline",)
# what the published scheduler does where its file, written by an older version, does not say
DDIM = {"clip_sample": True, "timestep_spacing": "leading"}
NOISE = (
    "beta_schedule", "beta_start", "beta_end", "num_train_timesteps", "timestep_spacing", "steps_offset",
    "clip_sample", "set_alpha_to_one", "prediction_type", "thresholding", "trained_betas", "rescale_betas_zero_snr",
)  # fmt: skip


def check(index: Mapping[str, Any]) -> None:
    """ValueError where a pipeline is none whose model this package has."""
    if (name := index.get("_class_name")) not in KNOWN:
        raise ValueError(f"a pipeline of the class {quote(name)} is not supported; {nearest(str(name), KNOWN)}")


def whole(index: Mapping[str, Any], model: Mapping[str, Any], scheduler: Mapping[str, Any]) -> dict[str, Any]:
    """One config of the three files."""
    plain = DDIM if scheduler.get("_class_name") == "DDIMScheduler" else {}
    noise = {name: value for name, value in {**plain, **scheduler}.items() if name in NOISE}
    labels = index.get("id2label")
    return {**model, **noise, **({"id2label": labels} if isinstance(labels, Mapping) else {})}
