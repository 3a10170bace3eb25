"""Writing: greedy, sampled, by beams, contrastive, drafted by a smaller model or by the prompt itself.

Argument names and results are Hugging Face's. A state changes speed and never the text; a batch changes no row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyformer.generation import assisted, beams, contrastive, ctc, fast, single
from anyformer.generation.config import settings_for
from anyformer.generation.dice import Dice
from anyformer.generation.job import Ending, Job
from anyformer.generation.prompt import NOT_HERE, Prompt, prompt_of, room
from anyformer.generation.scores import steps
from anyformer.generation.settings import Settings
from anyformer.generation.stepper import Stepper
from anyformer.model import Output, TransformerModule
from anyformer.parts.given import check_given
from anyformer.parts.head import CTCHead
from anyformer.state import State

__all__ = ["Settings", "generate"]

CANNOT_WRITE = "has no language-model head that writes from left to right"


@torch.no_grad()
def generate(
    model: Any, input_ids: Tensor | None = None, *, attention_mask: Tensor | None = None,
    inputs_embeds: Tensor | None = None, past_key_values: State | None = None, assistant_model: Any = None,
    return_dict: bool | None = None, return_dict_in_generate: bool | None = None,
    stream: Callable[[Tensor], None] | None = None, tokenizer: Any = None, compile: bool | None = None, **options: Any,
) -> Any:  # fmt: skip
    """Sequences of token ids (B, T), prompt included (an encoder's is not). With return_dict, an Output that also has
    scores, log_probs, finish_reasons ("stop" or "length"), past_key_values to go on from, and for beams
    sequences_scores and beam_indices. `stream` is called with the new tokens (B,) of each step.

    `compile=True` compiles the step that writes a token, once a batch size and rough length; on CUDA a step is recorded
    as a graph without being asked, unless `compile=False`.

    Inputs of the model that are not named here (pixel_values, decoder_input_ids, encoder_outputs, ...) go to it as they
    are; everything else in `options` is a field of `Settings`.
    """
    if not isinstance(model, TransformerModule):
        raise ValueError(f"only a model writes, as af.build and af.load give it, got {type(model).__name__}")
    head: Any = model.spec.head
    if isinstance(head, CTCHead) and not model.training:
        given = {name: options.pop(name) for name in list(options) if name in model.known_inputs()}
        given |= {} if attention_mask is None else {"attention_mask": attention_mask}
        fields = ctc.write(model, given, options)
        return Output(fields) if return_dict or return_dict_in_generate else fields["sequences"]
    check_writer(model)
    if model.training:
        raise ValueError("generate needs a model in eval mode: model.eval()")
    if model.spec.state_name in options:
        past_key_values = options.pop(model.spec.state_name)
    known = {*model.known_inputs(), *NOT_HERE} - {*model.common, *model.caching}
    named = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask}
    inputs = {**named, **{name: options.pop(name) for name in list(options) if name in known}}
    check_given({**inputs, "past_key_values": past_key_values})
    s = settings_for(model, options)
    s.check(head.vocab_size)
    if past_key_values is not None:
        model.check_memory()
    if past_key_values is not None and not s.use_cache:
        s.need("use_cache" not in options, "use_cache", "past_key_values cannot be used without it")
        s = dataclasses.replace(s, use_cache=True)
    told = bool(return_dict or return_dict_in_generate)
    s.need(told or not s.output_scores, "output_scores", "needs return_dict=True")
    s.need(told or not s.output_logits, "output_logits", "needs return_dict=True")
    if stream is not None:
        s.need(s.num_beams == 1, "num_beams", "beams cannot be streamed: the best text is known only at the end")
    prompt = prompt_of(model, {name: value for name, value in inputs.items() if value is not None}, s)
    check_assistant(model, assistant_model, s, prompt)
    max_length = room(model, s, prompt, past_key_values)
    fields = write(model, s, prompt, past_key_values, max_length, assistant_model, told, stream, tokenizer, compile)
    return Output(fields) if told else fields["sequences"]


def write(
    model: Any, s: Settings, prompt: Prompt, state: State | None, max_length: int, assistant: Any, told: bool,
    stream: Callable[[Tensor], None] | None, tokenizer: Any, compiled: bool | None,
) -> dict[str, Any]:  # fmt: skip
    """Reads the prompt and writes on in the way the settings ask for."""
    device, P, V = prompt.ids.device, prompt.ids.shape[1], model.spec.head.vocab_size
    ended = Ending(s, max_length, P, tokenizer, device)
    stepper = Stepper(model, prompt.source, s.use_cache, s.prefill_chunk_size)
    stepper.wants_hidden = s.contrastive
    copies = s.num_beams if s.num_beams > 1 else s.num_return_sequences
    dice = Dice(s.seed, prompt.ids.shape[0], 1 if s.num_beams > 1 else copies, device)
    scores = stepper.begin(prompt.aligned, prompt.mask, prompt.embeds, state)
    ids = prompt.written(s.pad, V)
    encoded = None
    if stepper.pair and "input_ids" in prompt.source:
        read = prompt.source["input_ids"]
        encoded = Prompt(read, read, prompt.source.get("attention_mask"), None, {}).written(s.pad, V).clamp(max=V)
    rules = steps(s, P, max_length, encoded if stepper.pair else ids, device)
    stepper.repeat(copies)
    fast.quicken(stepper, prompt.num_read + max_length - P, max_length - P, compiled)
    job = Job(
        settings=s, stepper=stepper, prompt=prompt.ids, ids=ids.repeat_interleave(copies, 0),
        scores=scores.repeat_interleave(copies, 0), places=prompt.places().repeat_interleave(copies), steps=rules,
        ended=ended, dice=dice, told=told, stream=stream,
        source_ids=None if encoded is None else encoded.repeat_interleave(copies, 0),
    )  # fmt: skip
    if assistant is not None:
        job.draft = Stepper(assistant, prompt.source, s.use_cache, s.prefill_chunk_size)
        job.draft.begin(prompt.aligned, prompt.mask)
        job.draft.repeat(copies)
    if s.num_beams > 1:
        fields = beams.search(job)
    elif s.contrastive:
        fields = contrastive.search(job)
    else:
        fields = (assisted if assistant is not None or s.prompt_lookup_num_tokens else single).write(job)
    stepper.check_finite(fields["sequences"])
    return fields


def check_writer(model: Any) -> None:
    """ValueError where a model scores no next tokens."""
    head = model.spec.head
    if not model.spec.left_to_right or getattr(model.head, "scores", None) is None or not hasattr(head, "vocab_size"):
        raise ValueError(f"{model.spec.architecture or 'this model'} {CANNOT_WRITE}")


def check_assistant(model: Any, assistant: Any, s: Settings, prompt: Prompt) -> None:
    if assistant is None:
        return

    def need(good: bool, what: str) -> None:
        if not good:
            raise ValueError(f"assistant_model: {what}")

    mine, other = model.spec.head.vocab_size, getattr(getattr(assistant.spec, "head", None), "vocab_size", None)
    need(bool(assistant.spec.left_to_right) and other is not None, f"it {CANNOT_WRITE}")
    need(other == mine, f"its vocabulary has {other} tokens, the model's {mine}")
    need(not assistant.training, "needs to be in eval mode: assistant_model.eval()")
    need(assistant.spec.pair == model.spec.pair, "one of the two has an encoder and the other has none")
    need("encoder_outputs" not in prompt.source, "it reads the encoder's inputs itself: encoder_outputs are not enough")
    need(prompt.embeds is None, "cannot read inputs_embeds, which belong to another table")
    need(s.num_beams == 1, f"cannot draft for beams, and num_beams={s.num_beams}")
    need(not s.contrastive, f"cannot draft for contrastive search, and penalty_alpha={s.penalty_alpha}")
    lookup = s.prompt_lookup_num_tokens
    need(lookup is None, f"either it drafts or the prompt does, and prompt_lookup_num_tokens={lookup}")
