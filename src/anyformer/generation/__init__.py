"""Text generation: greedy, sampling, beam search, contrastive search, assisted decoding and prompt lookup.

Argument names and results are as in Hugging Face. The text of a row does not depend on `use_cache` or on other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from anyformer.generation import assisted, beams, contrastive, ctc, fast, sample
from anyformer.generation.options import Settings
from anyformer.generation.search_state import Search, run_loop
from anyformer.generation.setup import begin, check_can_generate
from anyformer.models import Output, TransformerModule
from anyformer.parts.head.ctc import CTCHead
from anyformer.runtime.state import State

__all__ = ["Settings", "check_can_generate", "generate"]


F = TypeVar("F")


def typed_like(method: F) -> Callable[[Callable[..., Any]], F]:
    """Declare that a function has the types of `method`."""

    def declare(function: Any) -> F:
        return function

    return declare


@typed_like(TransformerModule.generate)
@torch.no_grad()
def generate(
    model: TransformerModule,
    input_ids: Tensor | None = None,
    *,
    attention_mask: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    past_key_values: State | None = None,
    assistant_model: TransformerModule | None = None,
    return_dict: bool | None = None,
    return_dict_in_generate: bool | None = None,
    stream: Callable[[Tensor], None] | None = None,
    tokenizer: Any = None,
    compile: bool | None = None,
    **options: Any,
) -> Any:
    """Generate text and return token ids (B, T): the prompt (not the encoder's) followed by the new tokens.

    With `return_dict`, returns an Output that also has scores, log_probs, finish_reasons ("stop" or "length") and
    past_key_values to continue from; for beams, sequences_scores and beam_indices instead of past_key_values.
    `stream` is called with the new tokens (B,) of each step.

    `compile=True` compiles the decoding step once per batch size and approximate length. `compile=False` turns off two
    defaults: on CUDA, a step is captured as a CUDA graph; on a CPU, a step of 4 to 64 rows in fp32 uses packed copies
    of the large layers, if the copies fit in a quarter of the free memory. They are kept in addition to the weights.

    `options` are fields of `Settings` and further inputs of the model (pixel_values, encoder_outputs, ...)."""
    if not isinstance(model, TransformerModule):
        raise ValueError(f"generate: expected a model from af.build or af.load, got {type(model).__name__}")
    head: Any = model.spec.head
    if isinstance(head, CTCHead) and not model.training:
        given = {name: options.pop(name) for name in list(options) if name in model.inputs}
        given |= {} if attention_mask is None else {"attention_mask": attention_mask}
        fields = ctc.decode(model, given, options)
        return Output(fields) if return_dict or return_dict_in_generate else fields["sequences"]
    detailed = bool(return_dict or return_dict_in_generate)
    named = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask}
    job = begin(
        model,
        named,
        options,
        state=past_key_values,
        assistant=assistant_model,
        detailed=detailed,
        stream=stream,
        tokenizer=tokenizer,
        compiled=compile,
    )
    fields = decode(job)
    job.stepper.check_finite(fields["sequences"])
    return Output(fields) if detailed else fields["sequences"]


def decode(job: Search) -> dict[str, Any]:
    """Generate with the method that the settings select, and return the fields of the Output."""
    s = job.settings
    if s.num_beams > 1:
        return run_loop(beams.search(job), job.stepper)
    if s.contrastive:
        return contrastive.search(job)
    if job.draft is not None or s.prompt_lookup_num_tokens:
        return assisted.decode(job)
    if job.stepper.captured is not None and job.plain:
        return fast.decode(job)
    return run_loop(sample.decode(job), job.stepper)
