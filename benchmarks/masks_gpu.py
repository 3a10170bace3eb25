"""Which attention kernel is fastest for which mask and length, ours and transformers', on one CUDA GPU.

One small Mistral trains (forward and backward of one row in bf16) or reads (forward). Each mask is measured with our
kernels (auto, sdpa, flex) and transformers' (sdpa, flex_attention), in turns. `FLEX_SCORES` in
src/anyformer/kernels/attention.py comes from these rows; docs/results/gpu.md shows them.

    PYTHONPATH=src python benchmarks/masks_gpu.py [--masks window documents] [--lengths 4096 16384] [--read] [--tiny]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

import anyformer as af

WINDOW = 1024
DOCUMENT = 1024  # mean length of a packed document
LONGEST_DENSE = 40_000  # tokens up to which a dense mask is tried
MASKS = ("window", "documents", "padding", "softcap")


def config(mask: str, tiny: bool) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": 1000, "hidden_size": 64 if tiny else 1024, "intermediate_size": 128 if tiny else 2816,
        "num_hidden_layers": 2 if tiny else 4, "num_attention_heads": 2 if tiny else 8, "num_key_value_heads": 2,
        "head_dim": 32 if tiny else 128, "max_position_embeddings": 2**18, "attention_dropout": 0.0,
    }  # fmt: skip
    if mask == "softcap":
        kinds = ["full_attention"] * sizes["num_hidden_layers"]
        return transformers.Gemma2Config(**sizes, query_pre_attn_scalar=sizes["head_dim"], layer_types=kinds)
    return transformers.MistralConfig(**sizes, sliding_window=WINDOW if mask == "window" else None)


def inputs(mask: str, length: int, device: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return our inputs and transformers' inputs: the same row of tokens."""
    draws = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 1000, (1, length), generator=draws)
    row: dict[str, Any] = {"input_ids": ids, "labels": ids}
    ours, theirs = dict(row), dict(row)
    if mask == "documents":
        starts = torch.rand(length, generator=draws) < 1 / DOCUMENT
        numbers = starts.long().cumsum(0)[None]
        begins = torch.where(starts | (torch.arange(length) == 0), torch.arange(length), 0).cummax(0).values
        ours["document_ids"], theirs["position_ids"] = numbers, (torch.arange(length) - begins)[None]
    if mask == "padding":
        real = torch.ones(1, length, dtype=torch.long)
        real[:, : length // 8] = 0
        ours["attention_mask"] = theirs["attention_mask"] = real
    return tuple({k: v.to(device) for k, v in each.items()} for each in (ours, theirs))  # type: ignore[return-value]


def step(model: Any, batch: dict[str, Any], read: bool) -> Callable[[], float]:
    model.train(not read)

    def train() -> float:
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        model.zero_grad()
        return float(loss)

    def only_read() -> float:
        with torch.no_grad():
            return float(model(**batch, use_cache=False).loss)

    return only_read if read else train


def measure(mask: str, length: int, options: argparse.Namespace) -> dict[str, Any]:
    device = "cpu" if options.tiny else "cuda"
    wanted = config(mask, options.tiny)
    mine, other = inputs(mask, length, device)
    steps: dict[str, Callable[[], float]] = {}
    row: dict[str, Any] = {
        "mask": mask,
        "tokens": length,
        "work": "read" if options.read else "train",
        "ms": {},
        "first": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        kind = transformers.AutoModelForCausalLM
        torch.manual_seed(0)
        kind.from_config(wanted).save_pretrained(folder)
        for kernel in options.kernels:
            side, name = kernel.split(":")
            dense = name in ("sdpa", "eager")
            if (dense and length > LONGEST_DENSE) or (options.tiny and "flex" in name):
                continue
            if side == "ours":
                model = af.load(folder, dtype=torch.bfloat16, device=device)
                model.kernel = name
            else:
                if mask == "softcap" and name == "sdpa":
                    name = "eager"  # it has no soft cap
                model = kind.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation=name).to(device)
            steps[kernel] = step(model, mine if side == "ours" else other, options.read)
        for kernel in list(steps):
            try:
                start = time.perf_counter()
                row.setdefault("loss", {})[kernel] = round(steps[kernel](), 4)
                row["first"][kernel] = round(time.perf_counter() - start, 2)
            except Exception as error:
                row["ms"][kernel] = f"{type(error).__name__}: {error}"[:200]
                del steps[kernel]
                torch.cuda.empty_cache()
        times: dict[str, list[float]] = {kernel: [] for kernel in steps}
        for _ in range(1 if options.tiny else options.turns):
            for kernel, run in steps.items():
                start = time.perf_counter()
                run()  # the loss is read, so the GPU has finished
                times[kernel].append(1e3 * (time.perf_counter() - start))
        row["ms"].update({kernel: round(statistics.median(each), 2) for kernel, each in times.items()})
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--masks", nargs="*", default=list(MASKS), choices=MASKS)
    parser.add_argument("--lengths", nargs="*", type=int, default=[2048, 4096, 16384, 32768, 131072])
    parser.add_argument(
        "--kernels", nargs="*", default=["ours:auto", "ours:sdpa", "ours:flex", "theirs:sdpa", "theirs:flex_attention"]
    )
    parser.add_argument("--read", action="store_true", help="forward only")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tiny", action="store_true", help="test the script on a CPU")
    options = parser.parse_args()
    out = Path(os.environ["OUT"]) / "masks.jsonl" if "OUT" in os.environ else None
    for mask in options.masks:
        for length in options.lengths:
            row = json.dumps(measure(mask, length, options))
            print(row, flush=True)
            if out is not None:
                with out.open("a") as file:
                    file.write(row + "\n")


if __name__ == "__main__":
    main()
