"""Compare the peak memory of training steps on one CUDA device with the prediction that `af.count` makes from a spec.

Each case runs two steps of the trainer (fp32 weights, bf16 autocast, fused AdamW, clipping, SDPA, the dropout of the
spec). Prints the peak of torch's allocator, the predicted peak and their ratio (predicted / measured), and the memory
after and the peak during each phase: forward, backward, step.

    python benchmarks/memory_gpu.py [--cases gpt2 bert-base ...] [--seconds 90] [--out FILE.json]
    python benchmarks/memory_gpu.py --tiny     # test the script on the CPU; prints the bytes saved for backward
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor

import anyformer as af
from anyformer.data import Data, PythonDocs
from anyformer.data.loader import StepBatches
from anyformer.objectives.batches import Batch as Tensors
from anyformer.objectives.causal import NextToken
from anyformer.objectives.ctc import CTC
from anyformer.objectives.images import ClassifyImage
from anyformer.objectives.masked import Masked
from anyformer.objectives.objective import Objective
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.parts.head.ctc import CTCHead
from anyformer.specs.codec import override
from anyformer.train import trainer as training
from anyformer.train.run import Batch, Run
from anyformer.train.trainer import Trainer

STEPS = 2


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and its batch: rows of `length` tokens (audio samples) and, for encoder-decoders, `source` tokens."""

    name: str
    objective: Objective
    batch: int
    length: int
    source: int | None = None
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    tiny: dict[str, Any] = dataclasses.field(default_factory=dict)
    precision: str = "bf16"
    recompute: bool = False
    compile: bool = False

    def __str__(self) -> str:
        more = [name for name in ("recompute", "compile") if getattr(self, name)]
        return " ".join([self.name, *([] if self.precision == "bf16" else [self.precision]), *more])


SMALL = {"width": 64, "decoder.depth": 2, "decoder.layers.attention.op.head_width": 16}
ENCODER = {"width": 64, "encoder.depth": 2, "encoder.layers.attention.op.head_width": 16}
MIXTRAL = {"width": 1024, "decoder.depth": 8, "decoder.layers.attention.op.num_heads": 16,
           "decoder.layers.attention.op.num_kv_heads": 4, "decoder.layers.attention.op.head_width": 64,
           "decoder.layers.feedforward.op.expert.width": 2048}  # fmt: skip
PICTURES = ClassifyImage(labels=tuple(map(str, range(1000))), image_size=(224, 224))
CASES = (
    Case("gpt2", NextToken(apart=False), 16, 1024, tiny=SMALL),
    Case("bert-base", Masked(), 32, 512, tiny=ENCODER),
    Case("t5-base", SpanCorruption(), 32, 114, 512, tiny={"encoder.depth": 2, "decoder.depth": 2}),
    Case("vit-b16", PICTURES, 128, 197, tiny=ENCODER),
    Case("llama3.2-1b", NextToken(apart=False), 4, 2048, tiny=SMALL),
    Case("mixtral-8x7b", NextToken(apart=False), 8, 1024, changes=MIXTRAL, tiny={"decoder.depth": 2}),
    Case("wav2vec2-base", CTC(), 8, 160_000, changes={"architecture": "", "head": CTCHead(vocab_size=32)},
         tiny={"encoder.depth": 2}),
    Case("mamba-130m", NextToken(apart=False), 8, 1024, tiny={"decoder.depth": 2}),
    Case("gpt2", NextToken(apart=False), 16, 1024, tiny=SMALL, recompute=True),
    Case("llama3.2-1b", NextToken(apart=False), 4, 2048, tiny=SMALL, recompute=True),
    Case("gpt2", NextToken(apart=False), 16, 1024, tiny=SMALL, precision="bf16-stream"),
    Case("bert-base", Masked(), 32, 512, tiny=ENCODER, compile=True),
    Case("gpt2", NextToken(apart=False), 16, 1024, tiny=SMALL, compile=True),
)  # fmt: skip


def tensors(case: Case, spec: Any) -> Tensors:
    """Return a random batch with the fields that the objective's `collate` returns."""
    draw = torch.Generator().manual_seed(0)
    B, T = case.batch, case.length

    def ids(*shape: int, most: int | None = None) -> Tensor:
        return torch.randint(5, most or getattr(spec.head, "lm", spec.head).vocab_size, shape, generator=draw)

    if isinstance(case.objective, ClassifyImage):
        return {"pixel_values": torch.randn(B, 3, 224, 224, generator=draw), "labels": ids(B, most=1000)}
    if isinstance(case.objective, CTC):
        return {"input_values": torch.randn(B, T, generator=draw), "labels": ids(B, max(2, T // 8000), most=30)}
    if isinstance(case.objective, SpanCorruption):
        return {"input_ids": ids(B, case.source or T), "labels": ids(B, T)}
    batch = {"input_ids": ids(B, T)}
    if isinstance(case.objective, Masked):
        number = -(-round(0.15 * B * T) // 64) * 64  # a multiple of 64, as the objective pads them
        batch |= {"places": torch.randint(B * T, (number,), generator=draw), "labels": ids(number)}
    return batch


class Gauge:
    """Reads allocated and peak memory at the end of each phase; does nothing on the CPU."""

    def __init__(self, device: str) -> None:
        self.on = device == "cuda"
        self.phases: dict[str, tuple[int, int]] = {}

    def mark(self, phase: str) -> None:
        """End a phase: store its allocated bytes and its peak."""
        if self.on:
            torch.cuda.synchronize()
            self.phases[phase] = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    spec = override(af.spec(case.name), {**case.changes, **(case.tiny if options.tiny else {})})
    if options.tiny:
        fewer = {"batch": 2, "length": 16 if case.length < 10_000 else 8000, "source": case.source and 24}
        case = dataclasses.replace(case, **fewer, compile=False)
    recompute = ("*.layers.*",) if case.recompute else ()
    run = Run(
        name=str(case), model=spec, data=Data(train=PythonDocs()), objective=case.objective, steps=STEPS,
        batch=Batch(examples=case.batch), precision=case.precision, recompute=recompute, compile=case.compile,
    )  # fmt: skip
    gauge, kept, start = Gauge(options.device), [0], time.perf_counter()
    gauge.mark("before")
    model = af.build(spec, device=options.device)
    gauge.mark("built")
    batch = tensors(case, spec)
    batches = [StepBatches(step, [batch], [True], case.batch, case.batch * case.length) for step in range(STEPS)]
    clip = training.clip
    with tempfile.TemporaryDirectory(prefix="anyformer-memory-") as folder:
        trainer = Trainer(
            run, Path(folder), model=model, feed=lambda step: contextlib.nullcontext(batches), device=options.device
        )
        trainer.checkpoints.save = lambda *args, **kwargs: Path(folder)  # type: ignore[method-assign]
        call = trainer.call

        def forward(*args: Any) -> Any:
            gauge.mark("start")
            with kept_by(trainer.model, kept) if options.tiny else contextlib.nullcontext():
                out = call(*args)
            gauge.mark("forward")
            return out

        def clipped(*args: Any) -> Any:
            gauge.mark("backward")
            return clip(*args)

        trainer.call, training.clip = forward, clipped
        try:
            trainer.fit()
        finally:
            training.clip = clip
        gauge.mark("step")
        loss = trainer.last.loss if trainer.last else float("nan")
    counted = af.count(spec)
    spent = time.perf_counter() - start
    half = torch.float32 if case.precision == "fp32" else torch.bfloat16
    memory = counted.memory(
        half, case.batch, case.length, case.source, training=True, recompute=case.recompute
    )  # fmt: skip
    empty = gauge.phases.get("before", (0, 0))[0]
    phases = {name: [value - empty for value in pair] for name, pair in gauge.phases.items()}
    measured = max((pair[1] for name, pair in phases.items() if name not in ("before", "built")), default=0)
    predicted = getattr(memory, "peak", memory.total)
    found = {
        "case": str(case), "parameters": counted.parameters, "batch": case.batch, "length": case.length, "loss": loss,
        "measured": measured, "predicted": predicted, "ratio": predicted / measured if measured else None,
        "terms": dataclasses.asdict(memory), "phases": phases, "kept": kept[0], "seconds": round(spent, 1),
        "counting_seconds": round(time.perf_counter() - start - spent, 1),
    }  # fmt: skip
    return found


@contextlib.contextmanager
def kept_by(model: Any, total: list[int]) -> Any:
    """Sum the bytes that autograd saves for backward, without the weights."""
    held = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    alive = []
    total[0] = 0

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            held.add(storage.data_ptr())
            alive.append(storage)
            total[0] += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=[], help="names of cases (default: all)")
    parser.add_argument("--seconds", type=float, default=90.0, help="no case starts later (default: 90)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.tiny:
        options.device = "cpu"
    torch.set_float32_matmul_precision("high")
    begin = time.perf_counter()
    results: list[dict[str, Any]] = []
    for case in CASES:
        if options.cases and str(case) not in options.cases and case.name not in options.cases:
            continue
        if time.perf_counter() - begin > options.seconds - 30 * case.compile:
            print(f"no time left for {case}", flush=True)
            continue
        try:
            results.append(measure(case, options))
        except Exception as error:  # continue with the other cases
            results.append({"case": str(case), "error": f"{type(error).__name__}: {error}"[:500]})
            print(f"{case}: {results[-1]['error']}", flush=True)
        else:
            each, G = results[-1], 1e9
            ratio = f"{each['ratio']:.3f}" if each["ratio"] else "-"
            print(f"{each['case']:<24} measured {each['measured'] / G:7.3f} GB, predicted {each['predicted'] / G:7.3f},"
                  f" ratio {ratio}; {each['seconds']} s, loss {each['loss']:.2f}", flush=True)  # fmt: skip
            print("    " + ", ".join(f"{name} {value / G:.3f}" for name, value in each["terms"].items()), flush=True)
            print("    " + ", ".join(f"{name} {held / G:.3f} (most {most / G:.3f})"
                                     for name, (held, most) in each["phases"].items()), flush=True)  # fmt: skip
            if options.tiny:
                print(f"    kept for backward: {each['kept']:,}", flush=True)
        gc.collect()
        if options.device == "cuda":
            torch._dynamo.reset()
            torch.cuda.empty_cache()
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps({"torch": torch.__version__, "results": results}, indent=1))
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
