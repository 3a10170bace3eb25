"""Milliseconds of a forward pass, of writing and of a training step on two threads of a CPU, by the public names alone,
so that two versions can be held against each other in turns:

    for i in 1 2 3; do for tree in old/src src; do PYTHONPATH=$tree python benchmarks/versions.py $tree; done; done
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import anyformer as af


def clock(run: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return round(statistics.median(times[2:]), 3)


def small(depth: int, width: int, heads: int) -> Any:
    changes = {"decoder.depth": depth, "width": width, "decoder.layers.attention.op.num_heads": heads}
    return af.build(af.override(af.spec("gpt2"), changes), seed=0)


def write(model: Any, ids: torch.Tensor, tokens: int) -> Any:
    return af.generate(model, ids, max_new_tokens=tokens, eos_token_id=[])


def main() -> None:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    ids, found = torch.randint(0, 5000, (4, 256)), {}
    text, prompt = ids[:, :128], ids[:1, :8]
    with torch.no_grad():
        bert = af.build(af.spec("bert-base"), seed=0).eval()
        found["forward bert-base 4 x 128"] = clock(lambda: bert(input_ids=text), 9)
        gpt2 = af.build(af.spec("gpt2"), seed=0).eval()
        found["forward gpt2 4 x 128"] = clock(lambda: gpt2(input_ids=text), 9)
        found["write gpt2 1 x 32"] = clock(lambda: write(gpt2, prompt, 32), 5)
        found["write gpt2 8 x 16"] = clock(lambda: write(gpt2, prompt.repeat(8, 1), 16), 5)
        tiny = small(4, 64, 4).eval()
        found["forward tiny 1 x 8"] = clock(lambda: tiny(input_ids=prompt), 200)
        found["write tiny 1 x 64"] = clock(lambda: write(tiny, prompt, 64), 15)
    taught = small(6, 384, 6).train()
    optimizer = torch.optim.AdamW(taught.parameters(), lr=1e-4)

    def step() -> None:
        taught(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    found["train 6 x 384, 4 x 256"] = clock(step, 9)
    print(" ".join(sys.argv[1:]), json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
