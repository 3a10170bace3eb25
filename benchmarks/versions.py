"""Compare two versions of this package through public names: forward, decoding, training, loading, command line.

    python benchmarks/versions.py OLD/src src [--rounds 3] [--device cuda] [--out FILE.json]
    python benchmarks/versions.py OLD/src src --calls --rounds 1    # function calls: the same on a busy machine

Each round measures both source trees one after the other, in separate processes. The table shows the median of each
tree, the ratio (above 1: the second is slower) and the spread of the ratios.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def clock(run: Callable[[], Any], repeats: int, cuda: bool = False) -> float:
    """Median milliseconds."""
    import torch

    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        run()
        if cuda:
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[2:])


def training_step(model: Any, ids: Any) -> Callable[[], None]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=ids.is_cuda)

    def step() -> None:
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def small(depth: int, width: int, heads: int) -> Any:
    import anyformer as af

    changes = {"decoder.depth": depth, "width": width, "decoder.layers.attention.op.num_heads": heads}
    return af.build(af.override(af.spec("gpt2"), changes), seed=0)


def measure_cpu() -> dict[str, float]:
    import torch

    import anyformer as af

    torch.set_num_threads(2)
    torch.manual_seed(0)
    ids, found = torch.randint(0, 5000, (4, 256)), {}
    text, prompt = ids[:, :128], ids[:1, :8]
    with torch.no_grad():
        bert = af.build(af.spec("bert-base"), seed=0).eval()
        found["forward bert-base 4 x 128"] = clock(lambda: bert(input_ids=text), 9)
        gpt2 = af.build(af.spec("gpt2"), seed=0).eval()
        found["forward gpt2 4 x 128"] = clock(lambda: gpt2(input_ids=text), 9)
        for rows, tokens in ((1, 32), (8, 16)):
            text = prompt.repeat(rows, 1)
            write = functools.partial(af.generate, gpt2, text, max_new_tokens=tokens, eos_token_id=[])
            found[f"decode gpt2 {rows} x {tokens}"] = clock(write, 5)
        tiny = small(4, 64, 4).eval()
        found["forward tiny 1 x 8"] = clock(lambda: tiny(input_ids=prompt), 200)
        found["decode tiny 1 x 64"] = clock(lambda: af.generate(tiny, prompt, max_new_tokens=64, eos_token_id=[]), 15)
    with tempfile.TemporaryDirectory() as folder:
        af.save(gpt2, Path(folder) / "gpt2", format="hf")
        found["load gpt2"] = clock(lambda: af.load(Path(folder) / "gpt2"), 5)
    found["train 6 x 384, 4 x 256"] = clock(training_step(small(6, 384, 6).train(), ids), 9)
    for words in (["--help"], ["zoo"]):
        command = [sys.executable, "-m", "anyformer", *words]
        call = functools.partial(subprocess.run, command, capture_output=True, check=True)
        found[f"anyformer {words[0]}"] = clock(call, 3)
    return found


def measure_calls() -> dict[str, float]:
    """Return the number of Python function calls of a forward pass, of decoding and of a training pass."""
    import torch

    import anyformer as af

    found, ids = {}, torch.randint(0, 500, (1, 8))
    inputs: dict[str, dict[str, Any]] = {
        "gpt2": {"input_ids": ids},
        "bert-base": {"input_ids": ids},
        "t5-small": {"input_ids": ids, "decoder_input_ids": ids},
        "vit-b16": {"pixel_values": torch.zeros(1, 3, 224, 224)},
    }
    with torch.no_grad():
        for name, given in inputs.items():
            model = af.build(af.spec(name), seed=0).eval()
            found[f"forward {name}"] = calls(functools.partial(model, **given))
        gpt2 = af.build(af.spec("gpt2"), seed=0).eval()
        found["generate gpt2 1 x 8"] = calls(lambda: af.generate(gpt2, ids, max_new_tokens=8, eos_token_id=[]))
    gpt2.train()
    found["forward gpt2 in training"] = calls(lambda: gpt2(input_ids=ids, labels=ids))
    return found


def calls(run: Callable[[], Any]) -> float:
    """Return the function calls of the third run."""
    run(), run()
    profile = cProfile.Profile()
    profile.runcall(run)
    return float(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def measure_cuda(train: bool = True) -> dict[str, float]:
    import torch

    import anyformer as af

    torch.manual_seed(0)
    ids, found = torch.randint(0, 5000, (16, 1024), device="cuda"), {}
    gpt2 = af.build(af.spec("gpt2"), seed=0).to("cuda", torch.bfloat16).eval()
    with torch.no_grad():
        found["forward gpt2 16 x 1024"] = clock(lambda: gpt2(input_ids=ids, use_cache=False), 10, True)
        found["forward gpt2 1 x 8"] = clock(lambda: gpt2(input_ids=ids[:1, :8], use_cache=False), 50, True)
        for rows in (1, 32):
            write = functools.partial(af.generate, gpt2, ids[:rows, :32], max_new_tokens=128, eos_token_id=[])
            found[f"decode gpt2 {rows} x 128"] = clock(write, 5, True)
    if not train:
        return found
    plain = af.build(af.spec("gpt2"), seed=0).to("cuda").train()
    found["train gpt2 16 x 1024, eager"] = clock(training_step(plain, ids), 8, True)
    plain.compile()
    found["train gpt2 16 x 1024, compiled"] = clock(training_step(plain, ids), 15, True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trees", nargs="+", help="folders that contain the package, the old one first")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--calls", action="store_true", help="count function calls instead of measuring time")
    parser.add_argument("--no-train", action="store_true", help="leave out training on a GPU")
    parser.add_argument("--out", type=Path, help="write the figures of every round as JSON")
    options = parser.parse_args()
    if len(options.trees) == 1:
        if options.calls:
            print(json.dumps(measure_calls()))
        else:
            print(json.dumps(measure_cpu() if options.device == "cpu" else measure_cuda(not options.no_train)))
        return
    rounds: dict[str, list[dict[str, float]]] = {tree: [] for tree in options.trees}
    for _ in range(options.rounds):
        for tree in options.trees:
            env = {**os.environ, "PYTHONPATH": str(Path(tree).resolve())}
            command = [sys.executable, __file__, tree, "--device", options.device]
            command += ["--no-train"] * options.no_train + ["--calls"] * options.calls
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
            rounds[tree].append(json.loads(done.stdout.splitlines()[-1]))
            if options.out is not None:
                options.out.write_text(json.dumps(rounds, indent=1))
    old, new = options.trees
    print(f"| {'calls' if options.calls else 'ms'} | {old} | {new} | ratio | spread |\n|---|---|---|---|---|")
    for name in rounds[old][0]:
        first, second = ([each[name] for each in rounds[tree]] for tree in (old, new))
        ratios = sorted(b / a for a, b in zip(first, second, strict=True))
        medians = statistics.median(first), statistics.median(second)
        figures = f"{medians[0]:.2f} | {medians[1]:.2f} | {medians[1] / medians[0]:.3f}"
        print(f"| {name} | {figures} | {ratios[0]:.3f} to {ratios[-1]:.3f} |")


if __name__ == "__main__":
    main()
