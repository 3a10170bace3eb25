"""Adapter for EleutherAI's lm-evaluation-harness, under the name "anyformer":

    lm_eval --model anyformer --model_args path=DIR --tasks hellaswag

The harness finds it through its entry points (`lm_eval.models` in pyproject.toml). A release that does not read
entry points (all up to 0.5.0.dev1) is started with `python -m anyformer.evaluate.harness` instead of `lm_eval`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import torch

from anyformer import families
from anyformer.checkpoint import load
from anyformer.evaluate.likelihood import likelihoods
from anyformer.generation import check_can_generate, generate
from anyformer.generation.defaults import settings_for
from anyformer.generation.writing import new_tokens
from anyformer.inputs import chat
from anyformer.inputs.tokenizer import Tokenizer, check_vocabulary_size
from anyformer.models import Model, position_limit
from anyformer.specs.messages import nearest, quote
from anyformer.weights import hub

try:
    import lm_eval.models
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import model_registry
    from lm_eval.models.utils import (
        DEFAULT_MAX_LENGTH,
        Collator,
        handle_stop_sequences,
        normalize_gen_kwargs,
        postprocess_generated_text,
    )
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm
except ImportError:
    raise ImportError("the adapter for lm-evaluation-harness needs lm_eval: pip install 'anyformer[lm_eval]'") from None

log = logging.getLogger(__name__)

ARGUMENTS = (
    "path",
    "device",
    "dtype",
    "offline",
    "batch_size",
    "max_length",
    "max_gen_toks",
    "add_bos_token",
    "prefix_token_id",
)


class AnyformerLM(TemplateLM):
    """`path` is a folder or a hub id. The other arguments are the same as for the harness's `hf` model, and so are the
    results: texts that are too long are cut at their start, and an empty context becomes the bos token."""

    max_gen_toks = 256

    def __init__(
        self,
        path: str = "",
        *,
        device: str | None = None,
        dtype: str = "auto",
        offline: bool = False,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        max_length: int | None = None,
        max_gen_toks: int | None = None,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        for name in unknown:
            raise ValueError(f"anyformer has no argument {quote(name)}; {nearest(name, ARGUMENTS)}")
        if not path:
            raise ValueError("give the folder of the model: --model_args path=DIR")
        folder = hub.resolve(str(path), offline=offline)
        self.tokenizer = Tokenizer.load(folder)
        # the harness passes "cuda" by default, on every machine
        self.model = load(folder, dtype=dtype, device="auto" if device is None or device.startswith("cuda") else device)
        check_can_generate(self.model)
        check_vocabulary_size(self.model, self.tokenizer)
        self.backend = "seq2seq" if self.model.spec.pair else "causal"
        self.path, self._device = str(path), self.model.device
        auto = str(batch_size).startswith("auto")
        self.batch_size = (max_batch_size or 32) if auto else int(batch_size)
        self.max_length = max_length or longest(self.model.spec) or self.tokenizer.max_length or DEFAULT_MAX_LENGTH
        self.max_gen_toks = max_gen_toks or self.max_gen_toks
        self.add_bos_token, self._prefix = add_bos_token, prefix_token_id

    # -- text and tokens

    @property
    def eot_token_id(self) -> int | None:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int | None:
        known = (self._prefix, self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        return next((token for token in known if token is not None), None)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        special = self.add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and self.prefix_token_id is not None:
            begins = string.startswith(self.tokenizer.decode([self.prefix_token_id]))
            special = False if begins else special  # the text has it already
        return self.tokenizer.encode(string, add_special_tokens=True if special is None else special)

    @property
    def tokenizer_name(self) -> str:
        return self.path.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        name = chat_template if isinstance(chat_template, str) else None
        return chat.choose(self.tokenizer, name) if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return chat.render(self.tokenizer, chat_history, add_generation_prompt=add_generation_prompt)

    def get_model_info(self) -> dict[str, Any]:
        number = sum(parameter.numel() for parameter in self.model.parameters())
        return {"model_num_parameters": number, "model_dtype": str(self.model.dtype)}

    # -- likelihood

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        pairs, num_cut = [], 0
        for _text, context, rest in requests:
            if len(rest) > self.max_length:
                raise ValueError(f"a continuation has {len(rest):,} tokens, the model takes {self.max_length:,}")
            room = self.max_length + 1 - len(rest) if self.backend == "causal" else self.max_length
            num_cut += len(context) > room
            pairs.append((context[-room:], rest))
        if num_cut:
            log.warning("%d contexts lose their beginning: the model takes %d tokens", num_cut, self.max_length)
        with tqdm(total=len(pairs), disable=disable_tqdm or None, desc="loglikelihood") as bar:
            results = likelihoods(
                self.model, pairs, size=self.batch_size, progress=lambda done, _: bar.update(done - bar.n)
            )
        answers = [(one.log_probability, one.greedy) for one in results]
        for request, answer in zip(requests, answers, strict=True):
            if request[0] is not None:  # not a window over a text
                self.cache_hook.add_partial("loglikelihood", request[0], answer)
        return answers

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        windows: list[tuple[None, list[int], list[int]]] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            pieces = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            own = [(None, *make_disjoint_window(piece)) for piece in pieces]
            windows += own
            owners += [number] * len(own)
        totals = [0.0] * len(requests)
        for owner, (one, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[owner] += one
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    # -- generation

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        order = Collator(
            [request.args for request in requests],
            group_by="gen_kwargs",
            group_fn=lambda args: args[1],
            sort_fn=lambda args: (-len(self.tok_encode(args[0])), args[0]),
        )
        written: list[str] = []
        with tqdm(total=len(requests), disable=disable_tqdm or None, desc="generate_until") as bar:
            for chunk in order.get_batched(n=self.batch_size):
                gen_kwargs = chunk[0][1]  # the same for the whole chunk
                texts = self.write([context for context, _ in chunk], gen_kwargs)
                for (context, _), text in zip(chunk, texts, strict=True):
                    self.cache_hook.add_partial("generate_until", (context, gen_kwargs), text)
                written += texts
                bar.update(len(chunk))
        return order.get_original(written)

    def write(self, contexts: list[str], gen_kwargs: dict[str, Any]) -> list[str]:
        options: dict[str, Any] = dict(normalize_gen_kwargs(gen_kwargs, self.max_gen_toks))
        stop = [text for text in options.pop("until") if text]
        num_new = options.pop("max_gen_toks")
        if not options.get("do_sample"):
            options.pop("temperature", None)
        room = self.max_length - (num_new if self.backend == "causal" else 0)
        if room < 1:
            raise ValueError(f"max_gen_toks is {num_new}, and the model takes {self.max_length:,} tokens in total")
        empty = [] if self.prefix_token_id is None else [self.prefix_token_id]
        rows = [self.tok_encode(context) or empty for context in contexts]
        if any(len(row) > room for row in rows):
            log.warning("a prompt loses its beginning: there is room for %d tokens", room)
        batch = pad_left([row[-room:] for row in rows], self._device)
        ids = generate(
            self.model, **batch, max_new_tokens=num_new, stop_strings=stop or None, tokenizer=self.tokenizer, **options
        )
        new = new_tokens(self.model, ids, batch["input_ids"].shape[1], settings_for(self.model, options).eos)
        end = None if self.eot_token_id is None else self.tokenizer.decode([self.eot_token_id])
        texts = self.tokenizer.batch_decode(new, skip_special_tokens=True)
        return [postprocess_generated_text(text, handle_stop_sequences(list(stop), end), None) for text in texts]


def longest(spec: Model) -> int | None:
    """Return the length limit of a model; without a limit, the length in its config (T5: of its training texts)."""
    limit = position_limit(spec)
    fields = families.find(spec.family).all_fields if limit is None and spec.family else {}
    named = ("n_positions", "max_position_embeddings", "n_ctx")
    limits = [spec.source.get(name, fields[name].default if name in fields else None) for name in named]
    return limit or next((size for size in limits if isinstance(size, int)), None)


def pad_left(rows: list[list[int]], device: Any) -> dict[str, Any]:
    """Return "input_ids" and "attention_mask" of rows that are padded on the left."""
    T = max(map(len, rows))
    ids = torch.tensor([[0] * (T - len(row)) + row for row in rows], device=device)
    mask = torch.tensor([[0] * (T - len(row)) + [1] * len(row) for row in rows], device=device)
    return {"input_ids": ids, "attention_mask": mask}


# load the harness's own models first; it would not register them later
assert lm_eval.models.MODEL_MAPPING
if "anyformer" not in model_registry:
    model_registry.register("anyformer", target="anyformer.evaluate.harness:AnyformerLM")


def main() -> None:
    """Run the harness's command, with our model registered."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except (ValueError, OSError) as error:
        print(f"anyformer: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
