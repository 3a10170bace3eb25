"""Decoding, prompts and first calls of `bench_gpu.py`: greedy, bf16, the same random weights on both sides.

Figures are tokens per second of the whole call, including the prompt. `default` is `af.generate(model, ids)`;
`compiled` is `compile=True` after `pack(fuse(model))`. transformers without a compiled cache is slow, so its time is
extrapolated from calls that write 1 and 32 tokens in the same turn.
Tokens are compared with the plain path (`compile=False`): a row of the batch may differ only after a tie.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from _training import (
    LLAMA,
    MIXTRAL,
    T5,
    TINY_GPT2,
    TINY_LLAMA,
    TINY_MAMBA,
    TINY_MIXTRAL,
    TINY_T5,
    TINY_WHISPER,
    WHISPER,
    against_goal,
    load_theirs,
    save_theirs,
)
from _turns import allocated, empty_cache, exclusive, peak_GB, scratch_folder, seconds, take_turns
from history import Row, compare, round_off
from torch import Tensor

import anyformer as af
from anyformer.transforms.fuse import fuse
from anyformer.transforms.pack import pack
from anyformer.transforms.quantize import quantize

BATCHES = (1, 32, 8, 128)  # the most important first
PROMPT, NEW, THEIRS = 128, 128, 32  # tokens: prompt, new, new ones of transformers without compiling
TURNS = 3
TIE = 1e-4  # tokens whose scores differ by less (relative to the highest score) are a tie
EXACT = 64  # tokens to compare
GPT_FAST = {1: 718, 32: 13_053}  # tokens/s, given by the maintainers: Llama-1B on one H200
LIMITS = {1: 1_300, 32: 30_000}  # goals for Llama-1B, compiled: batch size -> tokens/s
FORMATS, SMALLER = ("int8", "fp8", "int4"), 1.6  # weight formats; goal: how much faster than bf16
PREPARATION = 3.0  # goal: the first default call takes at most this many seconds longer than the second
LENGTHS = {128: 0.006, 2048: None, 32768: None}  # prompt length -> goal in seconds
PEAK, SHARE = 989e12, 0.6  # bf16 FLOP/s of an H100 or H200; goal: the share of it reached with 32,768 tokens


@dataclasses.dataclass(frozen=True)
class Writer:
    title: str
    architecture: str
    gb: int
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    tiny: dict[str, Any] = dataclasses.field(default_factory=dict)
    static: bool = False  # also compare with transformers' compiled static cache
    library: str = "transformers"


WRITERS = (
    Writer("Llama-1B", "LlamaForCausalLM", 30, LLAMA, TINY_LLAMA, static=True),
    Writer("GPT-2", "GPT2LMHeadModel", 15, {}, TINY_GPT2, static=True),
    Writer("Mixtral 8 x 50M", "MixtralForCausalLM", 15, MIXTRAL, TINY_MIXTRAL),
    Writer("Mamba-130m", "MambaForCausalLM", 20, {}, TINY_MAMBA),
    Writer("T5-base", "T5ForConditionalGeneration", 15, T5, TINY_T5),
    Writer("Whisper-small", "WhisperForConditionalGeneration", 20, WHISPER, TINY_WHISPER),
)


def row_names(writer: Writer) -> list[str]:
    names = []
    for batch in BATCHES:
        base = f"decoding: {writer.title}, batch {batch}"
        names += [f"{base}, default", f"{base}, compiled", f"{base}, default next to compiled"]
        if writer.static and batch in (1, 32):
            names += [f"{base}, compiled, static cache"]
        if writer.title == "Llama-1B" and batch in LIMITS:
            names += [f"{base}, {what}" for what in ("compiled, gpt-fast", "compiled, goal", "default, gpt-fast")]
        if writer.title == "Llama-1B" and batch == 1:
            names += [f"{base}, {format} weights" for format in FORMATS]
        names.append(f"exactness: {writer.title}, batch {batch}, default")
    calls = [f"first calls: {writer.title}, {path} generate" for path in ("default", "compiled")]
    return names + calls


def inputs_of(writer: Writer, config: Any, batch: int, options: Any) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(2)
    if writer.title.startswith("Whisper"):
        shape = (batch, config.num_mel_bins, 2 * config.max_source_positions)
        return {"input_features": torch.randn(shape, generator=draw).to(options.device, torch.bfloat16)}
    length = 16 if options.tiny else PROMPT
    ids = torch.randint(5, min(1000, config.vocab_size), (batch, length), generator=draw).to(options.device)
    return {"input_ids": ids}


def measure(writer: Writer, options: Any) -> Iterator[Row]:
    new, theirs = (20, 8) if options.tiny else (NEW, THEIRS)
    compiled = None if options.tiny else True
    batches = (1, 2) if options.tiny else BATCHES
    with scratch_folder(options.lock and options.lock.parent) as folder:
        config = save_theirs(writer, Path(folder), options, torch.bfloat16)  # type: ignore[arg-type]
        peer = load_theirs(writer, Path(folder), options, torch.bfloat16).eval()  # type: ignore[arg-type]
        read = {"device": options.device, "offline": True, "dtype": torch.bfloat16}
        default, packed = (af.load(folder, **read) for _ in range(2))  # type: ignore[arg-type]
        wide = af.load(folder, **{**read, "dtype": torch.float32})  # type: ignore[arg-type]
        pack(fuse(packed))
    peer.generation_config.eos_token_id = None
    for number, batch in enumerate(batches):
        if time.time() > options.until:
            return
        inputs, base = inputs_of(writer, config, batch, options), f"{writer.title}, batch {batch}"

        def ours(model: Any, fast: bool | None, count: int = new, inputs: dict[str, Tensor] = inputs) -> Tensor:
            return af.generate(model, **inputs, max_new_tokens=count, eos_token_id=[], compile=fast)

        def other(count: int, inputs: dict[str, Tensor] = inputs, **more: Any) -> None:
            if "input_ids" in inputs:
                more["attention_mask"] = torch.ones_like(inputs["input_ids"])
            tokens = peer.generate(**inputs, max_new_tokens=count, do_sample=False, pad_token_id=0, **more)
            if tokens.shape[1] < count:
                raise ValueError(f"transformers wrote {tokens.shape[1]} tokens instead of {count}")

        sides: dict[str, Callable[[], Any]] = {}
        for path, model, fast in (("default", default, None), ("compiled", packed, compiled)):
            sides[path] = lambda model=model, fast=fast: ours(model, fast)  # type: ignore[misc]
            first = seconds(sides[path])
            again = seconds(sides[path])
            if path == "default":  # tests/generation/test_gpu.py covers compiled steps
                with full_precision():
                    expected, tokens = (ours(wide, how, EXACT) for how in (False, None))
                    row = exact(f"exactness: {base}, {path}", wide, inputs, expected, tokens, expected.shape[1] - EXACT)
                yield row
            if number == 0:
                name = f"first calls: {writer.title}, {path} generate"
                note = f"preparation; the call took {first:.1f} s, the next {again:.2f} s"
                yield (
                    against_goal(name, "s", max(first - again, 0.01), PREPARATION, note)
                    if path == "default"
                    else Row(name, "s", round_off(first - again), None, "-", None, None, None, None, note)
                )
        peers: dict[str, Callable[[], Any]] = {"one": lambda: other(1), "some": lambda: other(theirs)}
        if writer.static and batch in (1, 32) and not options.tiny:
            peers["static"] = lambda: other(new, cache_implementation="static")
        note = ""
        for name, run in list(peers.items()):
            try:
                run()
            except Exception as error:
                peers.pop(name)
                note = f"{type(error).__name__}: {error}"[:200].replace("\n", " ")
        with exclusive(options.lock):
            spans = take_turns({**sides, **peers}, 2 if options.tiny else TURNS, 0.0)
        # seconds per new token
        ours_at = {path: [t / new / batch for t in spans[path]] for path in sides}
        theirs_at = {}
        if {"one", "some"} <= peers.keys():
            pairs = zip(spans["one"], spans["some"], strict=True)
            whole = [one + (some - one) / (theirs - 1) * (new - 1) for one, some in pairs]
            theirs_at["transformers"] = [t / new / batch for t in whole]
        if "static" in peers:
            theirs_at["static"] = [t / new / batch for t in spans["static"]]
        for path, times in ours_at.items():
            name = f"decoding: {base}, {path}"
            if "transformers" in theirs_at:
                yield compare(name, "tokens/s", times, theirs_at["transformers"], "transformers", 1.0, rate)
            else:
                yield Row(name, "tokens/s", middle(times), None, "no peer here", None, None, None, 1.0, note)
        if "static" in theirs_at:
            yield compare(f"decoding: {base}, compiled, static cache", "tokens/s", ours_at["compiled"],
                          theirs_at["static"], "transformers, compiled", 1.0, rate)  # fmt: skip
        yield compare(f"decoding: {base}, default next to compiled", "tokens/s", ours_at["default"],
                      ours_at["compiled"], "ours, compiled", 0.8, rate)  # fmt: skip
        if writer.title == "Llama-1B" and batch in LIMITS:
            for path in ours_at:
                yield given(f"decoding: {base}, {path}, gpt-fast", ours_at[path], GPT_FAST[batch], "gpt-fast, given")
            yield given(f"decoding: {base}, compiled, goal", ours_at["compiled"], LIMITS[batch], "goal")
        if writer.title == "Llama-1B" and batch == 1:
            yield from quantized_rows(base, default, lambda model: ours(model, None), new, options)
        empty_cache()


def quantized_rows(base: str, model: Any, write: Callable[[Any], Any], new: int, options: Any) -> Iterator[Row]:
    """Compare quantized weights with bf16 weights, both with the default settings."""
    for format in FORMATS:
        smaller = quantize(copy.deepcopy(model), format=format)
        sides = {"bf16": lambda: write(model), format: lambda smaller=smaller: write(smaller)}  # type: ignore[misc]
        for run in sides.values():
            run()
        with exclusive(options.lock):
            spans = take_turns(sides, 2 if options.tiny else TURNS, 0.0)
        times = {name: [t / new for t in spans[name]] for name in sides}
        name = f"decoding: {base}, {format} weights"
        yield compare(name, "tokens/s", times[format], times["bf16"], "ours, bf16", SMALLER, rate)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Compute fp32 matrix products in fp32 instead of TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def rate(seconds_per_token: float) -> float:
    return 1 / seconds_per_token


def middle(times: list[float]) -> float:
    return round_off(rate(sorted(times)[len(times) // 2]))


def given(name: str, times: list[float], peer: float, peer_name: str) -> Row:
    row = compare(name, "tokens/s", times, [1 / peer] * len(times), peer_name, 1.0, rate)
    return dataclasses.replace(row, peer=float(peer))


@torch.no_grad()
def exact(name: str, model: Any, inputs: dict[str, Tensor], plain: Tensor, fast: Tensor, prompt: int) -> Row:
    """Count the rows that equal the plain path up to a tie. In fp32: in bf16, the order of sums changes the text after
    some tokens. The note lists ties with position and score gap."""
    ties, wrong = [], []
    for b in (plain != fast).any(1).nonzero()[:, 0].tolist():
        at = int((plain[b] != fast[b]).nonzero()[0])  # later tokens depend on this one
        prefix = plain[b : b + 1, :at]
        texts = {"decoder_input_ids" if model.spec.pair else "input_ids": prefix}
        source = {key: value[b : b + 1] for key, value in inputs.items()} if model.spec.pair else {}
        scores = model(**source, **texts).logits[0, -1].float()
        gap = float((scores[plain[b, at]] - scores[fast[b, at]]) / scores.abs().max())
        (ties if abs(gap) <= TIE else wrong).append(f"row {b} token {at - prompt} ({gap:.1e})")
    rows = len(plain)
    note = f"ties: {listed(ties)}" if ties else ""
    note += f" **differs**: {listed(wrong)}" if wrong else ""
    good = rows - len(wrong)
    return Row(name, "rows equal up to ties", good, rows, "plain path", good / rows, None, None, 1.0, note.strip())


def listed(texts: list[str], most: int = 6) -> str:
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


# -- prompts ----------------------------------------------------------------------------------------------------------


def prompt_names() -> list[str]:
    names = [f"prompts: Llama-1B, {length:,} tokens" for length in LENGTHS]
    return [*names, f"{names[0]}, goal", f"{names[-1]}, share of the matrix rate"]


def measure_prompts(options: Any) -> Iterator[Row]:
    """Measure the time to the first token."""
    writer = WRITERS[0]
    with scratch_folder(options.lock and options.lock.parent) as folder:
        before = allocated()
        config = save_theirs(writer, Path(folder), options, torch.bfloat16)  # type: ignore[arg-type]
        model = af.load(folder, device=options.device, offline=True, dtype=torch.bfloat16)
        held = allocated() - before
        peer = load_theirs(writer, Path(folder), options, torch.bfloat16).eval()  # type: ignore[arg-type]
    peer.generation_config.eos_token_id = None
    for length, wanted in LENGTHS.items():
        if time.time() > options.until:
            return
        read = min(length, 64) if options.tiny else length
        ids = torch.randint(5, min(1000, config.vocab_size), (1, read), generator=torch.Generator().manual_seed(3))
        ids = ids.to(options.device)

        def ours(ids: Tensor = ids) -> Any:
            return af.generate(model, ids, max_new_tokens=1, eos_token_id=[])

        def other(ids: Tensor = ids) -> Any:
            return peer.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False,
                                 pad_token_id=0)  # fmt: skip

        for _ in range(3):
            ours(), other()
        with exclusive(options.lock):
            spans = take_turns({"ours": ours, "transformers": other}, 2 if options.tiny else 9, 0.05)
            peak = peak_GB(ours, held)
        counted, (V, D) = af.count(model.spec), (config.vocab_size, config.hidden_size)
        flops = counted.flops(read, causal=True) - 2 * V * D * (read - 1)  # only the last token is scored
        name, best = f"prompts: Llama-1B, {length:,} tokens", sorted(spans["ours"])[len(spans["ours"]) // 2]
        share = flops / best / PEAK
        note = f"{share:.0%} of 989 TFLOP/s" + (f", {peak} GB" if peak is not None else "")
        yield compare(name, "ms", spans["ours"], spans["transformers"], "transformers", 1.0, note=note)
        if wanted:
            yield against_goal(f"{name}, goal", "ms", 1e3 * best, 1e3 * wanted)
        if length == max(LENGTHS):
            yield Row(f"{name}, share of the matrix rate", "%", round_off(100 * share), 100 * SHARE, "goal",
                      round(share / SHARE, 4), None, None, 1.0)  # fmt: skip
