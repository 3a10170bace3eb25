"""Greedy decoding on one CUDA device: Llama-3.2-1B's shape with random weights, bf16, prompt 128, 256 new tokens.

`generate` is the whole call, the prompt included; `steps` the decoding steps alone. `share` is the part of the
measured memory bandwidth that reading every weight (and the keys and values held half way) once a step comes to. Rows:
`graph` is what `af.generate` does unasked; `packed` after `pack(fuse(model))`, `compiled` with `compile=True` besides;
`--peers` adds transformers, eager and with its static cache compiled.

    python benchmarks/generate_gpu.py [--batches 1 32] [--peers] [--model llama3.2-1b] [--prompt 128] [--new 256]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import anyformer as af
from anyformer.transforms.fuse import fuse
from anyformer.transforms.pack import pack


def clock(run: Callable[[], Any], repeats: int = 5) -> list[float]:
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return times


def bandwidth() -> float:
    """Bytes a second of reading a large tensor."""
    block = torch.ones(2**30, dtype=torch.bfloat16, device="cuda")
    return block.nbytes / min(clock(lambda: block.view(torch.int16).max(), 9))


def report(name: str, batch: int, new: int, whole: list[float], steps: list[float], read: int, speed: float) -> None:
    a, b = statistics.median(whole), statistics.median(steps) if steps else float("nan")
    row = {
        "row": name, "batch": batch, "generate_tokens_s": round(batch * new / a, 1),
        "spread": [round(batch * new / t, 1) for t in (max(whole), min(whole))],
        "steps_tokens_s": round(batch / b, 1) if steps else None, "ms_a_step": round(1e3 * b, 4) if steps else None,
        "share": round(read / b / speed, 3) if steps else None,
        "peak_GB": round(torch.cuda.max_memory_allocated() / 1e9, 2),
    }  # fmt: skip
    print(json.dumps(row), flush=True)


def ours(model: Any, options: argparse.Namespace, batch: int, compiled: bool | None, name: str, speed: float) -> None:
    ids = torch.randint(0, 1000, (batch, options.prompt), device="cuda")

    def run() -> Any:
        return af.generate(model, ids, max_new_tokens=options.new, eos_token_id=[], compile=compiled)

    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    print(f"  {name}: first call {time.perf_counter() - start:.1f} s", flush=True)
    whole = clock(run)
    recording = list(model.recordings.values())[-1]
    held = options.prompt + options.new // 2

    def steps() -> None:
        recording.state.past.fill_(options.prompt)
        recording.buffers.count.zero_()
        for _ in range(options.new):
            recording.run()

    taken = [t / options.new for t in clock(steps)]
    weights = {t.data_ptr(): t.nbytes for t in model.parameters()}
    table = model.embedding.tokens.weight
    untied = 0 if table is model.head.out.weight else table.nbytes
    read = sum(weights.values()) - untied + af.count(model.spec).state(batch, held, torch.bfloat16)
    report(name, batch, options.new, whole, taken, read, speed)


def peers(options: argparse.Namespace, batch: int) -> None:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=131072, rope_theta=500000.0, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.randint(0, 1000, (batch, options.prompt), device="cuda")
    for name, extra in (("transformers", {}), ("transformers static + compiled", {"cache_implementation": "static"})):

        def run(extra: dict[str, Any] = extra) -> Any:
            return model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=options.new, min_new_tokens=options.new,
                do_sample=False, eos_token_id=None, pad_token_id=0, **extra,
            )  # fmt: skip

        run()
        run()
        report(name, batch, options.new, clock(run, 3), [], 0, 1.0)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama3.2-1b")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--peers", action="store_true")
    options = parser.parse_args()
    speed = bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, reads {speed / 1e12:.2f} TB/s")
    model = af.build(af.spec(options.model), device="cuda", dtype=torch.bfloat16).eval()
    for batch in options.batches:
        ours(model, options, batch, None, "graph", speed)
    pack(fuse(model))
    for batch in options.batches:
        ours(model, options, batch, None, "graph, packed", speed)
        ours(model, options, batch, True, "compiled, packed", speed)
    if options.peers:
        del model
        for batch in options.batches:
            peers(options, batch)


if __name__ == "__main__":
    main()
