"""Folder layouts of published models: the config file and the folder of the weights.

Most folders have a config.json next to the weights. A diffusers pipeline has a model_index.json and one folder per
model: for a DiTPipeline, the transformer, the noise schedule in the scheduler's file and the labels in the index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from anyformer.specs.messages import nearest, quote
from anyformer.weights.io import read_json

PIPELINES = ("DiTPipeline",)
TRANSFORMER, SCHEDULER = "transformer/config.json", "scheduler/scheduler_config.json"
# defaults of the published scheduler that files of older versions omit
DDIM = {"clip_sample": True, "timestep_spacing": "leading"}
NOISE = (
    "beta_schedule", "beta_start", "beta_end", "num_train_timesteps", "timestep_spacing", "steps_offset",
    "clip_sample", "set_alpha_to_one", "prediction_type", "thresholding", "trained_betas", "rescale_betas_zero_snr",
)  # fmt: skip


def read_pipeline(path: Path) -> dict[str, Any]:
    """Return one config from the three files of a pipeline. Raises ValueError for an unsupported pipeline class."""
    index = read_json(path)
    if (name := index.get("_class_name")) not in PIPELINES:
        hint = nearest(str(name), PIPELINES)
        raise ValueError(f"{path}: pipeline class {quote(name)} is not supported; {hint}")
    scheduler = read_json(path.parent / SCHEDULER) if (path.parent / SCHEDULER).is_file() else {}
    defaults = DDIM if scheduler.get("_class_name") == "DDIMScheduler" else {}
    noise = {name: value for name, value in {**defaults, **scheduler}.items() if name in NOISE}
    labels = index.get("id2label")
    model = read_json(path.parent / TRANSFORMER)
    return {**model, **noise, **({"id2label": labels} if isinstance(labels, Mapping) else {})}


class FolderLayout(NamedTuple):
    config: str  # the file that identifies the layout
    read: Callable[[Path], dict[str, Any]] = read_json
    weights: str = "."  # the folder of the weights


LAYOUTS = (
    FolderLayout("config.json"),
    FolderLayout("bert_config.json"),  # Google's name
    FolderLayout("model_index.json", read_pipeline, "transformer"),
)


def find_layout(folder: Path) -> FolderLayout | None:
    return next((layout for layout in LAYOUTS if (folder / layout.config).is_file()), None)
