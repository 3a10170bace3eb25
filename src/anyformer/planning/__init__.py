"""Planning a training: compute, model size, layout over devices, time and cost, and the run that does it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.parts.embedding.text import TextEmbedding
from anyformer.planning.layout import MACHINE, DeviceLayout, TrainingJob
from anyformer.specs.codec import override
from anyformer.train.parallel import Mesh
from anyformer.train.run import Batch
from anyformer.train.start import check_suits

if TYPE_CHECKING:
    from anyformer.train.run import Run


def run_of(base: Run, name: str, job: TrainingJob, way: DeviceLayout, steps: int) -> Run:
    """Return the planned run, with the data, the objective and the optimizer of `base`."""
    if way.pipeline > 1:
        raise ValueError("`anyformer train` does not support pipelines; choose a layout with pipeline=1")
    sharded = way.shard * way.tensor * way.expert > 1
    changes = {
        "name": name,
        "model": job.spec,
        "steps": steps,
        "precision": "bf16",
        "compile": base.compile and not sharded,
        "batch": Batch(examples=job.batch, micro=job.micro, length=job.length),
        "mesh": Mesh(replicate=way.replicate, shard=way.shard, tensor=way.tensor, expert=way.expert),
        "recompute": ("*.layers.*",) if way.recompute else (),
    }
    embedding = dict(job.spec.items())["embedding"]
    if isinstance(embedding, TextEmbedding) and base.vocabulary is not None and base.vocabulary.size is not None:
        changes["vocabulary.size"] = embedding.tokens.vocab_size
    run = override(base, changes)
    check_suits(run)
    return run


def command(way: DeviceLayout, run: Path) -> str:
    """Return the command to start on every machine; tensor parallelism is inside machines of 8 devices if possible."""
    train = f"-m anyformer train {shlex.quote(str(run))}"
    if way.devices == 1:
        return f"python {train}"
    if way.devices <= MACHINE:
        return f"torchrun --nproc-per-node {way.devices} {train}"
    divisors = [n for n in range(1, MACHINE + 1) if way.devices % n == 0]
    each = max([n for n in divisors if n % way.tensor == 0] or divisors)
    return (
        f"torchrun --nnodes {way.devices // each} --nproc-per-node {each} --rdzv-backend c10d"
        f" --rdzv-endpoint HOST:29500 {train}"
    )
