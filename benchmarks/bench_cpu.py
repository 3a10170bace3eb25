"""Compare CPU speed with transformers: one process, the same weights, threads, prompts and tokens; about 8 minutes.

Turns alternate between the two sides, so that other load on the machine affects both. Each pair of turns gives one
ratio, theirs / ours: above 1, we are faster. Decoding is greedy, with GPT-2 124M and random weights. "default" is
`af.generate(model, ids)` without options; "compiled" is `compile=True` with fused projections, packed for batch 8;
theirs is `generate` in fp32. Rows named "of the limit" compare with the speed at which reading every weight once per
step would fill the memory bandwidth (measured between the turns). Start times are CPU time of whole commands.

    make bench-cpu                                          # add a line to the history, write docs/results/speed.md
    python benchmarks/bench_cpu.py --no-record --only decoding --seconds 10
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import gzip
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import forward
import stories
import torch
import torch.nn.functional as F
import transformers

import anyformer as af
from anyformer.transforms.fuse import fuse
from anyformer.transforms.pack import pack
from anyformer.transforms.quantize import quantize

GPT2: dict[str, Any] = {}
# nanoGPT's Shakespeare model with 65 characters
MINI = {"n_layer": 6, "n_embd": 384, "n_head": 6, "vocab_size": 65, "n_positions": 256, "bos_token_id": 0,
        "eos_token_id": 0}  # fmt: skip
TOKENS = 32
PEER = "transformers"


def fused(model: Any) -> Any:
    return fuse(copy.deepcopy(model))


def packed(model: Any) -> Any:
    return pack(fused(model))


def int8(model: Any) -> Any:
    return quantize(fused(model))


@dataclasses.dataclass(frozen=True)
class Decoding:
    name: str
    batch_size: int
    goal: float  # minimum ratio
    change: Callable[[Any], Any] = lambda model: model
    compiled: bool = False
    config: dict[str, Any] = dataclasses.field(default_factory=dict)


DECODING = (
    Decoding("GPT-2, batch 1, default", 1, 1.5),
    Decoding("GPT-2, batch 8, default", 8, 1.5),
    Decoding("GPT-2, batch 1, compiled", 1, 1.5, fused, True),
    Decoding("GPT-2, batch 8, compiled", 8, 1.5, packed, True),
    Decoding("GPT-2, batch 1, int8", 1, 1.5, int8),
    Decoding("GPT-2, batch 8, int8", 8, 1.5, int8),
    Decoding("GPT-2, batch 1, int8 compiled", 1, 1.5, int8, True),
    Decoding("mini GPT 6 x 384, batch 1, default", 1, 1.5, config=MINI),
)
# families in forward.py; the first case of each is measured
STEPS = ("gpt2", "bert", "vit")
COMMANDS = ("--help", "zoo", "parts", "parts rotary")


def clock(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def in_turns(ours: Callable[[], Any], theirs: Callable[[], Any], seconds: float) -> tuple[list[float], list[float]]:
    """Return the seconds of each turn. Runs for about `seconds` and at least three pairs, after one warm-up pair."""
    ours(), theirs()
    mine: list[float] = []
    other: list[float] = []
    end = time.monotonic() + seconds
    while len(mine) < 3 or (time.monotonic() < end and len(mine) < 25):
        turns = [(mine, ours), (other, theirs)]
        for times, run in turns if len(mine) % 2 else turns[::-1]:
            times.append(clock(run))
    return mine, other


BLOCK = torch.ones(32 * 1024 * 1024)  # 128 MiB: larger than the L1 and L2 caches


def bandwidth() -> float:
    """Bytes per second that all threads together read now."""
    return BLOCK.nbytes / min(clock(BLOCK.sum) for _ in range(3))


def read_bytes(model: Any) -> int:
    """Bytes of weights that one step reads: all except embedding tables that are not tied to the head."""
    tensors = {t.data_ptr(): t for t in (*model.parameters(), *model.buffers())}
    for table in (model.embedding.tokens.weight, model.embedding.position.weight):
        if table is not model.head.out.weight:
            tensors.pop(table.data_ptr(), None)
    return sum(t.nbytes for t in tensors.values())


def models(config: dict[str, Any], kept: dict[str, Any]) -> tuple[Any, Any]:
    """Return (ours, theirs) with the same random weights, loaded from a checkpoint."""
    key = json.dumps(config)
    if key not in kept:
        kept.clear()
        published = transformers.GPT2Config(**config, architectures=["GPT2LMHeadModel"])
        torch.manual_seed(0)
        theirs = transformers.GPT2LMHeadModel(published).eval()
        with tempfile.TemporaryDirectory(prefix="anyformer-bench-") as folder:
            theirs.save_pretrained(folder)
            kept[key] = af.load(folder, offline=True), theirs
    return kept[key]


def decoding(seconds: float, history: Any) -> Iterator[Any]:
    kept: dict[str, Any] = {}
    for case in DECODING:
        plain, theirs = models(case.config, kept)
        model = case.change(plain)
        prompt = torch.randint(
            0, theirs.config.vocab_size, (case.batch_size, 8), generator=torch.Generator().manual_seed(1)
        )
        extra = {"compile": True} if case.compiled else {}

        def mine(model: Any = model, prompt: Any = prompt, extra: Any = extra) -> torch.Tensor:
            return af.generate(model, input_ids=prompt, max_new_tokens=TOKENS, eos_token_id=None, **extra)

        def other(model: Any = theirs, prompt: Any = prompt) -> torch.Tensor:
            return model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=TOKENS, eos_token_id=None,
                do_sample=False, pad_token_id=0,
            )  # fmt: skip

        first = clock(mine)
        same = float((mine() == other()).float().mean())
        ours, peer = in_turns(mine, other, seconds)
        count = case.batch_size * TOKENS
        note = f"{same:.0%} the same tokens" + (f"; first call {first:.0f} s" if case.compiled else "")
        yield history.compare(
            f"decoding: {case.name}", "tokens/s", ours, peer, PEER, case.goal, lambda s, count=count: count / s, note
        )
        limit = read_bytes(model) * TOKENS / max(bandwidth() for _ in range(3))
        yield history.compare(
            f"of the limit: {case.name}", "tokens/s", ours, [limit] * len(ours), "memory bandwidth", None,
            lambda s, count=count: count / s,
        )  # fmt: skip


def steps(seconds: float, history: Any) -> Iterator[Any]:
    """Eager forward passes and training steps (torch's AdamW on both sides)."""
    for family in STEPS:
        case = next(case for case in forward.CASES if case.family == family)
        ours, theirs, config = forward.models(case)
        torch.manual_seed(1)
        inputs = case.inputs(config)
        with torch.no_grad():
            mine, other = in_turns(lambda: ours(**inputs), lambda: theirs(**inputs), seconds)  # noqa: B023
        yield history.compare(f"forward: {family}, {case.size}", "ms", mine, other, PEER, 1.0)

        def stepper(model: Any, inputs: dict[str, Any] = inputs) -> Callable[[], None]:
            model.train()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

            def step() -> None:
                logits = forward.first(model(**inputs)).flatten(0, -2)
                F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long)).backward()
                optimizer.step()
                optimizer.zero_grad()

            return step

        mine, other = in_turns(stepper(ours), stepper(theirs), seconds)
        yield history.compare(f"training: {family}, {case.size}, eager", "ms", mine, other, PEER, 1.0)


def starts(seconds: float, history: Any) -> Iterator[Any]:
    for command in COMMANDS:

        def run(command: str = command) -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-m", "anyformer", *command.split()], stdout=subprocess.DEVNULL, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        times = [run() for _ in range(5)]
        yield history.compare(f"start: anyformer {command}", "s", times, [1.0] * 5, "goal", 1.0, lambda s: s)


def quality(seconds: float, history: Any) -> Iterator[Any]:
    """Perplexity of the trained stories260K in fp32 / in int8: a ratio of 1 means that rounding costs nothing."""
    data = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not (data / "weights" / "stories260K").is_dir():
        return
    model, encode = stories.load(data / "weights" / "stories260K")
    start = torch.ones(4, 1, dtype=torch.long)
    own = af.generate(model, input_ids=start, max_new_tokens=255, do_sample=True, top_k=0, seed=0, eos_token_id=None)
    with gzip.open(data / "wikitext2_valid_test" / "wiki.test.raw.gz", "rt", encoding="utf-8") as file:
        wiki = encode(file.read(40_000))
    for name, tokens in (("its own stories", own.flatten().tolist()), ("wikitext-2", wiki)):
        before, after = (stories.perplexity(each, tokens, 256) for each in (model, int8(model)))
        ratio = before / after
        yield history.Row(
            f"int8: perplexity of stories260K on {name}", "", after, before, "fp32", ratio, ratio, ratio, 0.99
        )


GROUPS = {"decoding": decoding, "steps": steps, "starts": starts, "quality": quality}


def machine() -> str:
    """Return the name of the processor and the number of threads. lscpu, unlike /proc/cpuinfo, names ARM processors."""
    name = ""
    if shutil.which("lscpu"):
        text = subprocess.run(["lscpu"], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout
        name = next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Model name")), "")
    return f"{name or platform.machine()}, {torch.get_num_threads()} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=GROUPS, help="measure only these rows")
    parser.add_argument("--seconds", type=float, default=10, help="time per row (default: 10)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--no-record", action="store_true", help="do not change the history and the page")
    options = parser.parse_args()
    import history

    torch.set_num_threads(options.threads)
    print(f"{machine()}; torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"{'':52}{'ours':>9}{'peer':>9}{'ratio':>7}  {'10-90 %':>11}{'goal':>6}")
    rows = []
    for name, measure in GROUPS.items():
        if options.only in (None, name):
            for row in measure(options.seconds, history):
                rows.append(row)
                goal = "" if row.goal is None else f"{row.goal:.2f}{' missed' if row.missed else ''}"
                print(f"{row.name:52}{row.ours:9.4g}{row.peer:9.4g}{row.ratio:7.2f}  {row.low:5.2f}-{row.high:<5.2f}"
                      f"{goal:>6}  {row.note}", flush=True)  # fmt: skip
    if not options.no_record:
        history.finish(rows, machine())


if __name__ == "__main__":
    main()
