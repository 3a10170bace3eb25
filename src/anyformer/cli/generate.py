"""Continue a prompt, or write from the text that an encoder reads, and stream the text.

The prompt is PROMPT, --file, or standard input (without the newline at its end).

In Python, af.generate takes more options, with transformers' names: repetition_penalty, no_repeat_ngram_size,
penalty_alpha (contrastive search), assistant_model (speculative decoding, or assisted generation),
prompt_lookup_num_tokens (prompt lookup), use_cache (the key-value cache, KV cache). Decoding is greedy without
--do-sample and --num-beams."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli import tell
from anyformer.cli.settings import MODEL, add_flag, device_flag
from anyformer.cli.texts import as_json, text_of
from anyformer.tasks.table import TASKS

if TYPE_CHECKING:
    from anyformer.generation.writing import TextStream
    from anyformer.inputs.tokenizer import Tokenizer
    from anyformer.models import TransformerModule

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
KERNELS = ("auto", "eager", "sdpa", "flex")
SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p", "seed")  # options of the task `write`
LENGTH = 128  # new tokens if neither the command nor the model's files set it
LARGEST = 16 * 2**20  # bytes of a prompt


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODEL)
    add("prompt", metavar="PROMPT", nargs="?", help="the text to continue")
    add("--file", metavar="PATH", help="read the prompt from a file")
    add("--lines", action="store_true", help="every line is a prompt with its own result")
    add("--chat", action="store_true", help="the prompt is a user's message: apply the chat template")
    add("--json", action="store_true", help="print one JSON object per line: text, tokens, log_probs, finish_reason")
    add("--num-beams", type=int, metavar="N", help="beam search with N beams; the text is not streamed")
    writing_flags(parser)


def writing_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of generation, for every verb that generates text."""
    add = parser.add_argument
    add(
        "--max-new-tokens", type=int, metavar="N", help=f"longest text, in tokens (default: the model's, else {LENGTH})"
    )
    for name in SAMPLING:
        add_flag(parser, name, TASKS["write"].flags[name])
    add("--stop", metavar="TEXT", action="append", help="stop before this text; can be repeated")
    add("--dtype", metavar="NAME", default="auto", help=f"{', '.join(DTYPES)}")
    device_flag(parser)
    add("--kernel", metavar="NAME", default="auto", help=f"attention kernel: {', '.join(KERNELS)}")
    add("--compile", action="store_true", default=None, help="compile the model first: faster for long or many texts")
    add("--offline", action="store_true", help="do not use the network; read only local folders and the cache")


def run(options: argparse.Namespace) -> None:
    check(options)
    texts = prompts(options)
    tokenizer, load = tokenizer_and_loader(options)
    ids = [encode(tokenizer, text, options) for text in texts]
    model = load()
    written, errors, start = 0, 0, time.perf_counter()
    for row in ids:
        try:
            if isinstance(row, ValueError):
                raise row
            written += len(write(model, tokenizer, row, options).tokens)
        except (ValueError, FloatingPointError) as error:
            if not options.lines:
                raise
            errors += 1  # print it as the result of this line
            print(as_json({"error": str(error)}) if options.json else f"error: {error}", flush=True)
    took = time.perf_counter() - start
    if sys.stderr.isatty():
        print(f"{written:,} tokens in {took:.1f} s: {written / max(took, 1e-9):.1f} tokens/s", file=sys.stderr)
    if errors:
        tell(f"{errors:,} of {len(ids):,} prompts failed")
        raise SystemExit(1)


def encode(tokenizer: Tokenizer, text: str, options: argparse.Namespace) -> list[int] | ValueError:
    """Encode a prompt. With --lines, return the error of an invalid prompt instead of raising it."""
    try:
        chat = [{"role": "user", "content": text}]
        ids = tokenizer.chat(chat) if options.chat else tokenizer.encode(text)
        if not ids or (options.lines and not text.strip()):
            raise ValueError("the prompt is empty: it has no tokens")
        return ids
    except ValueError as error:
        if not options.lines:
            raise
        return error


def check(options: argparse.Namespace) -> None:
    """Raise errors that can be found before the model is loaded."""
    from anyformer.specs.messages import nearest

    for name, valid in (("dtype", DTYPES), ("kernel", KERNELS)):
        given = getattr(options, name)
        if given not in valid:
            raise ValueError(f"no {name} {given!r}; {nearest(given, valid)}")
    if any(not stop for stop in options.stop or ()):
        raise ValueError("--stop takes a text of at least one character")
    if not os.path.isdir(os.path.expanduser(options.model)) and options.model.startswith((".", "~", "/")):
        raise FileNotFoundError(f"{options.model}: no such folder")


def tokenizer_and_loader(options: argparse.Namespace) -> tuple[Tokenizer, Callable[[], TransformerModule]]:
    """Return the tokenizer and a function that loads the model."""
    from anyformer.cli.terminal import spinner

    local = os.path.isdir(os.path.expanduser(options.model))  # a download shows its own progress
    with spinner(f"reading {options.model}" if local else f"looking for {options.model}"):
        from anyformer.generation.options import Settings
        from anyformer.inputs.tokenizer import Tokenizer
        from anyformer.kernels import hardware

        Settings(**settings(options)).check(2**31)
        device = hardware.device(options.device)
    from anyformer.weights import hub

    folder = hub.resolve(options.model, offline=options.offline)
    check_reads_text(folder)

    def load() -> TransformerModule:
        from anyformer import checkpoint

        with spinner(f"reading {options.model}"):
            model = checkpoint.load(folder, dtype=options.dtype, device=device)
        model.kernel = options.kernel
        if options.compile:
            from anyformer.transforms.fuse import fuse
            from anyformer.transforms.pack import pack

            pack(fuse(model))
        return model

    return Tokenizer.load(folder), load


def check_reads_text(folder: Path) -> None:
    """Raise ValueError if the model does not read text."""
    from anyformer.checkpoint import read_spec

    described: Any = read_spec(folder)
    names = [name for part in described.readers for name in part.embedding.inputs]
    if "input_ids" not in names:
        name = described.architecture or "this model"
        raise ValueError(f"{name} reads {names[0]}, not text; `anyformer run --list` shows tasks for other inputs")


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the generation options that were given as flags."""
    names = ("max_new_tokens", "num_beams", *SAMPLING)
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


def prompts(options: argparse.Namespace) -> list[str]:
    if options.prompt is not None and options.file is not None:
        raise ValueError("give PROMPT or --file, not both")
    if options.prompt is not None:
        text = options.prompt
    else:  # a newline at the end is not part of a prompt
        text = text_of(options.file, "give a prompt", LARGEST)[0].removesuffix("\n").removesuffix("\r")
    if not (text.strip() if options.lines else text):
        raise ValueError("the prompt is empty")
    return [line.removesuffix("\r") for line in text.split("\n")] if options.lines else [text]


def write(model: TransformerModule, tokenizer: Tokenizer, ids: list[int], options: argparse.Namespace) -> TextStream:
    """Generate one text, streamed unless --json."""
    from anyformer.generation.writing import TextStream

    writing = TextStream(model, tokenizer, ids, settings(options), options.stop, options.compile)
    for piece in writing:
        if not options.json:
            show(piece)
    if options.json:
        result = {"text": writing.text, "tokens": writing.tokens, "log_probs": [round(p, 6) for p in writing.log_probs]}
        print(as_json({**result, "finish_reason": writing.finish_reason}), flush=True)
    else:
        print()
    return writing


def show(piece: str) -> None:
    sys.stdout.write("".join(map(visible, piece)) if sys.stdout.isatty() else piece)
    sys.stdout.flush()


def visible(letter: str) -> str:
    """Drop control characters, so that a model's text cannot control the terminal."""
    return letter if letter.isprintable() or letter in "\n\t" else ""
