"""Writes on from a prompt, or from the text that an encoder reads, and streams what it writes.

The prompt is PROMPT, --file, or what is piped in (a newline at its end is not part of it)."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from anyformer.cli.settings import device_flag
from anyformer.cli.texts import as_json, text_of
from anyformer.model import TransformerModule

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
KERNELS = ("auto", "eager", "sdpa", "flex")
LENGTH = 128  # new tokens, where neither the command nor the model's own files say
LARGEST = 16 * 2**20  # bytes of a prompt


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model folder, Hugging Face's or ours, or a hub id")
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="the text to go on from")
    parser.add_argument("--file", metavar="PATH", help="the prompt is what this file holds")
    parser.add_argument("--lines", action="store_true", help="every line is a prompt of its own, a result a line")
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's message: apply the chat template")
    parser.add_argument("--json", action="store_true", help="one object a line: text, tokens, log_probs, finish_reason")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help=f"the model's own, else {LENGTH}")
    parser.add_argument("--num-beams", type=int, metavar="N", help="beam search; nothing is streamed")
    parser.add_argument("--do-sample", action="store_true", default=None, help="draw tokens instead of the likeliest")
    parser.add_argument("--temperature", type=float, metavar="X", help="of sampling: near 0 is surer, above 1 wilder")
    parser.add_argument("--top-k", type=int, metavar="N", help="sample from the N likeliest tokens")
    parser.add_argument("--top-p", type=float, metavar="X", help="... from the likeliest that have this share together")
    parser.add_argument("--min-p", type=float, metavar="X", help="... from those with this share of the likeliest's")
    parser.add_argument("--seed", type=int, metavar="N", help="of sampling: the same seed gives the same text")
    parser.add_argument("--stop", metavar="TEXT", action="append", help="end before this text; may be given again")
    parser.add_argument("--dtype", metavar="NAME", default="auto", help=f"{', '.join(DTYPES)}")
    device_flag(parser)
    parser.add_argument("--kernel", metavar="NAME", default="auto", help=f"of attention: {', '.join(KERNELS)}")
    parser.add_argument("--compile", action="store_true", default=None, help="compile first: for long texts, or many")
    parser.add_argument("--offline", action="store_true", help="open no connection: folders and the cache alone")


def run(options: argparse.Namespace) -> None:
    from anyformer.part import nearest

    for name, valid in (("dtype", DTYPES), ("kernel", KERNELS)):
        given = getattr(options, name)
        if given not in valid:
            raise ValueError(f"no {name} {given!r}; {nearest(given, valid)}")
    if any(not stop for stop in options.stop or ()):
        raise ValueError("--stop takes a text of at least one character")
    texts = prompts(options)
    path = os.path.expanduser(options.model)
    if not os.path.isdir(path) and options.model.startswith((".", "~", "/")):
        raise FileNotFoundError(f"{options.model}: no such folder")

    from anyformer.cli.terminal import working

    local = os.path.isdir(path)  # a download shows its own progress
    with working(f"reading {options.model}" if local else f"looking for {options.model}"):
        from anyformer import machine
        from anyformer.generation.settings import Settings
        from anyformer.inputs.text import Tokenizer

        settings = {n: getattr(options, n) for n in ("max_new_tokens", "num_beams", "do_sample", "temperature", "top_k",
                                                    "top_p", "min_p", "seed")}  # fmt: skip
        settings = {name: value for name, value in settings.items() if value is not None}
        Settings(**settings).check(2**31)  # before minutes of loading
        device = machine.device(options.device)
    from anyformer.weights import hub

    folder = hub.resolve(options.model, offline=options.offline)
    tokenizer = Tokenizer.load(folder)
    ids = [encode(tokenizer, text, options.chat) for text in texts]
    with working(f"reading {options.model}"):
        from anyformer.checkpoint import load

        model = load(folder, dtype=options.dtype, device=device)
    model.kernel = options.kernel
    if options.compile:
        from anyformer.transforms.fuse import fuse
        from anyformer.transforms.pack import pack

        pack(fuse(model))
    written, start = 0, time.perf_counter()
    for row in ids:
        result = write(model, tokenizer, row, settings, options)
        written += len(result["tokens"])
        if options.json:
            print(as_json(result), flush=True)
    took = time.perf_counter() - start
    if sys.stderr.isatty():
        print(f"{written:,} tokens in {took:.1f} s: {written / max(took, 1e-9):.1f} tokens/s", file=sys.stderr)


def prompts(options: argparse.Namespace) -> list[str]:
    if options.prompt is not None and options.file is not None:
        raise ValueError("give PROMPT or --file, not both")
    if options.prompt is not None:
        text = options.prompt
    else:  # a newline at the end is not part of a prompt
        text = text_of(options.file, "give a prompt", LARGEST)[0].removesuffix("\n").removesuffix("\r")
    texts = [line for line in text.split("\n") if line.strip()] if options.lines else [text]
    if not texts or not all(texts):
        raise ValueError("the prompt is empty")
    return texts


def encode(tokenizer: Any, text: str, chat: bool) -> list[int]:
    ids = tokenizer.chat([{"role": "user", "content": text}]) if chat else tokenizer.encode(text)
    if not ids:
        raise ValueError("the prompt is empty: it has no tokens")
    return ids


def write(
    model: TransformerModule, tokenizer: Any, ids: list[int], settings: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """One text, printed as it grows unless it is told as JSON."""
    import torch

    from anyformer.generation import generate
    from anyformer.generation.config import settings_for
    from anyformer.model import position_limit

    table = getattr(model.spec.embedding, "tokens", None)
    most = getattr(table, "vocab_size", None)
    if most is not None and max(ids) >= most:
        raise ValueError(f"the tokenizer gives token {max(ids)}, the model has {most}: they do not belong together")
    stored = settings_for(model, settings)
    if stored.max_new_tokens is None and stored.max_length is None:
        limit = position_limit(model.spec)
        read = 1 if model.spec.pair else len(ids)
        settings = {**settings, "max_new_tokens": LENGTH if limit is None else max(min(LENGTH, limit + 1 - read), 1)}
    ends = set(stored.eos)
    decoder = tokenizer.stream(options.stop)
    tokens: list[int] = []
    pieces: list[str] = []

    def show(piece: str) -> None:
        pieces.append(piece)
        if piece and not options.json:
            sys.stdout.write("".join(map(visible, piece)) if sys.stdout.isatty() else piece)
            sys.stdout.flush()

    def arrived(new: Any) -> None:
        token = int(new[0])
        tokens.append(token)
        if token not in ends:
            show(decoder.push(token))

    streaming = stored.num_beams == 1
    out = generate(
        model, input_ids=torch.tensor([ids], device=model.device), return_dict=True, output_scores=False,
        stream=arrived if streaming else None, tokenizer=tokenizer, stop_strings=options.stop, compile=options.compile,
        **settings,
    )  # fmt: skip
    if not streaming:
        for token in out.sequences[0, -out.log_probs.shape[1] :].tolist():
            arrived([token])
            if token in ends or decoder.stopped is not None:
                break
    show(decoder.flush())
    if not options.json:
        print()
    return {
        "text": "".join(pieces),
        "tokens": tokens,
        "log_probs": [round(value, 6) for value in out.log_probs[0, : len(tokens)].tolist()],
        "finish_reason": "stop" if decoder.stopped is not None else out.finish_reasons[0],
    }


def visible(letter: str) -> str:
    """A model's text may not steer the terminal."""
    return letter if letter.isprintable() or letter in "\n\t" else ""
