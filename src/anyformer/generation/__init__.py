"""Writing: greedy, sampled, by beams, contrastive, drafted by a smaller model or by the prompt itself.

Argument names and results are Hugging Face's. A state changes speed and never the text; a batch changes no row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyformer.generation import assisted, beams, contrastive, ctc, fast, sample
from anyformer.generation.options import Settings
from anyformer.generation.search_state import Search, run_writer
from anyformer.generation.setup import begin, check_writer
from anyformer.models import Output, TransformerModule
from anyformer.parts.head.ctc import CTCHead
from anyformer.runtime.state import State

__all__ = ["Settings", "check_writer", "generate"]


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
    """Sequences of token ids (B, T), prompt included (an encoder's is not). With return_dict, an Output that also has
    scores, log_probs, finish_reasons ("stop" or "length"), past_key_values to go on from, and for beams
    sequences_scores and beam_indices. `stream` is called with the new tokens (B,) of each step.

    `compile=True` compiles the step that writes a token, once a batch size and rough length; on CUDA a step is recorded
    as a graph without being asked, unless `compile=False`. On a CPU a step of 4 to 64 rows in fp32 multiplies by packed
    copies of the large layers, unless `compile=False`: they stay beside the weights, whose memory is then taken twice,
    and are made where they need at most a quarter of what is free.

    Inputs of the model that are not named here (pixel_values, decoder_input_ids, encoder_outputs, ...) go to it as they
    are; everything else in `options` is a field of `Settings`.
    """
    if not isinstance(model, TransformerModule):
        raise ValueError(f"only a model writes, as af.build and af.load give it, got {type(model).__name__}")
    head: Any = model.spec.head
    if isinstance(head, CTCHead) and not model.training:
        given = {name: options.pop(name) for name in list(options) if name in model.inputs}
        given |= {} if attention_mask is None else {"attention_mask": attention_mask}
        fields = ctc.write(model, given, options)
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
    fields = write(job)
    job.stepper.check_finite(fields["sequences"])
    return Output(fields) if detailed else fields["sequences"]


def write(job: Search) -> dict[str, Any]:
    """Writes on in the way the settings ask for."""
    s = job.settings
    if s.num_beams > 1:
        return run_writer(beams.search(job), job.stepper)
    if s.contrastive:
        return contrastive.search(job)
    if job.draft is not None or s.prompt_lookup_num_tokens:
        return assisted.write(job)
    if job.stepper.recording is not None and job.plain:
        return fast.write(job)
    return run_writer(sample.write(job), job.stepper)
