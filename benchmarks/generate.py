"""Greedy decoding, anyformer beside transformers: one process, the same weights, threads, prompt and tokens, CPU, fp32.

Runs alternate, ours and theirs, so that whatever else the machine does falls on both; a pair gives one ratio, theirs /
ours, and above 1 we are faster. `10-90 %` is the spread of the ratios; `CPU` the ratio of processor time, which a busy
machine disturbs less. `limit` is the share of what the memory allows, were every weight read once a step and nothing
else done; the read bandwidth is measured between the runs. Int8 rows print what the rounding costs on real text, with
the trained stories260K (there is no real GPT-2 here; random weights have no perplexity worth the name).

Ours are fused projections, weights packed where the batch is 8, int8 where said, and the step compiled (`compile=True`)
unless the row says eager. Theirs is `generate` as it is. Compiling takes up to a minute, which is shown.

    python benchmarks/generate.py [--case "GPT-2 124M x 1"] [--tokens 48] [--repeats 9] [--seconds 40] [--json]
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import gzip
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import stories
import torch
import transformers

import anyformer as af
from anyformer.transforms.fuse import fuse
from anyformer.transforms.pack import pack
from anyformer.transforms.quantize import quantize

GPT2: dict[str, Any] = {}
# nanoGPT's character model of Shakespeare: 65 characters
MINI = {"n_layer": 6, "n_embd": 384, "n_head": 6, "vocab_size": 65, "n_positions": 256, "bos_token_id": 0,
        "eos_token_id": 0}  # fmt: skip


def fused(model: Any) -> Any:
    return fuse(copy.deepcopy(model))


def packed(model: Any) -> Any:
    return pack(fused(model))


def int8(model: Any) -> Any:
    return quantize(fused(model))


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    config: dict[str, Any]
    batch_size: int
    goal: float  # of the ratio
    change: Callable[[Any], Any] = fused
    compiled: bool = True


CASES = (
    Case("GPT-2 124M x 1", GPT2, 1, 2.0),
    Case("GPT-2 124M x 8", GPT2, 8, 2.0, packed),
    Case("GPT-2 124M x 1 int8", GPT2, 1, 3.0, int8),
    Case("GPT-2 124M x 1 eager", GPT2, 1, 2.0, fused, False),
    Case("GPT-2 124M x 8 eager", GPT2, 8, 2.0, packed, False),
    Case("GPT-2 124M x 1 int8 eager", GPT2, 1, 3.0, int8, False),
    Case("mini GPT 6x384 x 1", MINI, 1, 4.0),
    Case("mini GPT 6x384 x 1 eager", MINI, 1, 4.0, fused, False),
)


def models(config: dict[str, Any], kept: dict[str, Any]) -> tuple[Any, Any]:
    """(ours, theirs) with the same random weights, through a saved checkpoint."""
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


def read_bytes(model: Any) -> int:
    """Weights that one step reads: all but the rows of the token and position tables that it passes over."""
    tensors = {t.data_ptr(): t for t in (*model.parameters(), *model.buffers())}
    for table in (model.embedding.tokens.weight, model.embedding.position.weight):
        if table is not model.head.out.weight:
            tensors.pop(table.data_ptr(), None)
    return sum(t.nbytes for t in tensors.values())


def clock(run: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


BLOCK = torch.ones(32 * 1024 * 1024)  # 128 MiB: more than the nearer caches hold


def bandwidth() -> float:
    """Bytes a second that all threads together read, now."""
    return BLOCK.nbytes / min(clock(BLOCK.sum)[0] for _ in range(3))


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def measure(case: Case, tokens: int, repeats: int, seconds: float, kept: dict[str, Any]) -> dict[str, Any]:
    plain, theirs = models(case.config, kept)
    ours = case.change(plain)
    vocab_size = theirs.config.vocab_size
    prompt = torch.randint(0, vocab_size, (case.batch_size, 8), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(prompt)

    def mine() -> torch.Tensor:
        return af.generate(ours, input_ids=prompt, attention_mask=mask, max_new_tokens=tokens, eos_token_id=None,
                           compile=case.compiled)  # fmt: skip

    def other() -> torch.Tensor:
        return theirs.generate(
            prompt, attention_mask=mask, max_new_tokens=tokens, eos_token_id=None, do_sample=False, pad_token_id=0
        )

    same = float((mine() == other()).float().mean())  # this warms up, too
    times, speeds, end = [], [], time.monotonic() + seconds
    for i in range(repeats):
        if i > 2 and time.monotonic() > end:  # a busy machine: fewer pairs, but three at least
            break
        if i % 2:
            b, a = clock(other), clock(mine)
        else:
            a, b = clock(mine), clock(other)
        times.append((a, b))
        speeds.append(bandwidth())
    ratios = [b[0] / a[0] for a, b in times]
    steps = case.batch_size * tokens
    rates = [tokens / a[0] for a, _ in times]
    size = read_bytes(ours)
    return {
        "case": case.name, "pairs": len(times),
        "ours_tokens_per_s": statistics.median(steps / a[0] for a, _ in times),
        "theirs_tokens_per_s": statistics.median(steps / b[0] for _, b in times),
        "ratio": statistics.median(ratios), "ratio_10": percentile(ratios, 0.1), "ratio_90": percentile(ratios, 0.9),
        "cpu_ratio": statistics.median(b[1] / a[1] for a, b in times), "goal": case.goal, "same_tokens": same,
        "weight_bytes": size, "read_gb_per_s": max(speeds) / 1e9,
        "read_gb_per_s_median": statistics.median(speeds) / 1e9,
        "share_of_limit": statistics.median(rates) * size / max(speeds),
    }  # fmt: skip


def real_text(data: Path) -> dict[str, float]:
    """Perplexity of stories260K before and after int8, on its own stories and on Wikipedia."""
    model, encode = stories.load(data / "weights" / "stories260K")
    start = torch.ones(4, 1, dtype=torch.long)
    own = af.generate(model, input_ids=start, max_new_tokens=255, do_sample=True, top_k=0, seed=0, eos_token_id=None)
    with gzip.open(data / "wikitext2_valid_test" / "wiki.test.raw.gz", "rt", encoding="utf-8") as file:
        wiki = encode(file.read(40_000))
    found = {}
    for name, changed in (("fp32", model), ("int8", int8(model))):
        found[f"stories_{name}"] = stories.perplexity(changed, own.flatten().tolist(), 256)
        found[f"wikitext_{name}"] = stories.perplexity(changed, wiki)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=40, help="a case, after which no more repeats begin")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if not options.json:
        versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
        print(f"{versions}, {options.threads} threads, CPU, fp32 or as said; tokens/s of all rows together")
        print(
            f"{'case':26}{'ours':>8}{'theirs':>8}{'ratio':>7}  {'10-90 %':>11}{'CPU':>6}{'goal':>6}{'limit':>7}  same"
        )
    kept: dict[str, Any] = {}
    for case in CASES:
        if options.case and case.name not in options.case:
            continue
        row = measure(case, options.tokens, options.repeats, options.seconds, kept)
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        spread = f"{row['ratio_10']:.2f}-{row['ratio_90']:.2f}"
        print(f"{row['case']:26}{row['ours_tokens_per_s']:8.1f}{row['theirs_tokens_per_s']:8.1f}{row['ratio']:7.2f}  "
              f"{spread:>11}{row['cpu_ratio']:6.2f}{row['goal']:6.1f}{row['share_of_limit']:7.0%}"
              f"  {row['same_tokens']:.0%}"
              f"  (reads {row['weight_bytes'] / 1e6:.0f} MB a step, memory {row['read_gb_per_s']:.0f} GB/s; "
              f"{row['pairs']} pairs)",
              flush=True)  # fmt: skip
    if options.case and not any("int8" in name for name in options.case):
        return
    if not (options.data / "weights" / "stories260K").is_dir():
        print(f"no {options.data / 'weights' / 'stories260K'}: the perplexity of int8 weights was not measured")
        return
    text = real_text(options.data)
    if options.json:
        print(json.dumps({"case": "perplexity", **text}))
        return
    for kind, about in (("stories", "its own stories"), ("wikitext", "Wikipedia (wikitext-2)")):
        before, after = text[f"{kind}_fp32"], text[f"{kind}_int8"]
        print(
            f"perplexity of stories260K on {about}: {before:.3f} -> {after:.3f} with int8 ({after / before - 1:+.2%})"
        )


if __name__ == "__main__":
    main()
