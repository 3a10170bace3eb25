"""Folders that published models come in: which file holds the config, and where the weights are.

Most have a config.json beside the weights. A pipeline of diffusers has a model_index.json and one folder per model:
the transformer of a DiTPipeline, with the noise schedule in the scheduler's file and the labels in the index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from anyformer.specs.messages import nearest, quote
from anyformer.weights.io import read_json

PIPELINES = ("DiTPipeline",)
TRANSFORMER, SCHEDULER = "transformer/config.json", "scheduler/scheduler_config.json"
# defaults of the published scheduler that its file, written by an older version, may leave out
DDIM = {"clip_sample": True, "timestep_spacing": "leading"}
NOISE = (
    "beta_schedule", "beta_start", "beta_end", "num_train_timesteps", "timestep_spacing", "steps_offset",
    "clip_sample", "set_alpha_to_one", "prediction_type", "thresholding", "trained_betas", "rescale_betas_zero_snr",
)  # fmt: skip


def read_pipeline(path: Path) -> dict[str, Any]:
    """One config from the three files of a pipeline; ValueError for a pipeline of another class."""
    index = read_json(path)
    if (name := index.get("_class_name")) not in PIPELINES:
        line = f"a pipeline of the class {quote(name)} is not supported; {nearest(str(name), PIPELINES)}"
        raise ValueError(f"{path}: {line}")
    scheduler = read_json(path.parent / SCHEDULER) if (path.parent / SCHEDULER).is_file() else {}
    defaults = DDIM if scheduler.get("_class_name") == "DDIMScheduler" else {}
    noise = {name: value for name, value in {**defaults, **scheduler}.items() if name in NOISE}
    labels = index.get("id2label")
    model = read_json(path.parent / TRANSFORMER)
    return {**model, **noise, **({"id2label": labels} if isinstance(labels, Mapping) else {})}


class FolderLayout(NamedTuple):
    config: str  # the file that marks it
    read: Callable[[Path], dict[str, Any]] = read_json
    weights: str = "."  # the folder of the weights


LAYOUTS = (
    FolderLayout("config.json"),
    FolderLayout("bert_config.json"),  # Google's name
    FolderLayout("model_index.json", read_pipeline, "transformer"),
)


def find_layout(folder: Path) -> FolderLayout | None:
    return next((layout for layout in LAYOUTS if (folder / layout.config).is_file()), None)
