"""Start of a call of `generate`: checks the options, reads the prompt and returns a Search."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from anyformer.generation import fast
from anyformer.generation.defaults import settings_for
from anyformer.generation.options import Settings
from anyformer.generation.prompt import REFUSED_INPUTS, Prompt, prompt_of, room
from anyformer.generation.random_state import SeededRows
from anyformer.generation.scores import steps
from anyformer.generation.search_state import Ending, Search
from anyformer.generation.stepper import Stepper
from anyformer.models import Call, TransformerModule
from anyformer.parts.base import HasScores, vocabulary_size
from anyformer.parts.head.language import VocabularyOutput
from anyformer.runtime.inputs import check_given, in_model_dtype
from anyformer.runtime.state import State

NOT_GENERATIVE = "has no language-model head that generates from left to right"


def begin(
    model: TransformerModule,
    named: dict[str, Any],
    options: dict[str, Any],
    *,
    state: State | None = None,
    assistant: TransformerModule | None = None,
    detailed: bool = False,
    stream: Callable[[Tensor], None] | None = None,
    tokenizer: Any = None,
    compiled: bool | None = None,
) -> Search:
    """Check the options and read the prompt. `named` are model inputs; `options` are settings and more inputs."""
    check_can_generate(model, by_position=True)
    if model.training:
        raise ValueError("generate needs a model in eval mode: model.eval()")
    options = dict(options)
    if model.spec.state_name in options:
        state = options.pop(model.spec.state_name)
    known = {*model.inputs, *REFUSED_INPUTS} - {*model.common, *model.caching}
    inputs = {**named, **{name: options.pop(name) for name in list(options) if name in known}}
    check_given({**inputs, "past_key_values": state}, model.input_kinds)
    inputs = in_model_dtype(inputs, model.input_kinds, model)
    s = settings_for(model, options)
    s.check(model.spec.head.vocab_size)
    if state is not None:
        model.check_memory()
    if state is not None and not s.use_cache:
        s.need("use_cache" not in options, "use_cache", "past_key_values needs use_cache=True")
        s = dataclasses.replace(s, use_cache=True)
    if model.predicts_by_position:
        for name in ("prompt_lookup_num_tokens", "penalty_alpha"):
            s.need(not getattr(s, name), name, "this model predicts one position per call and cannot use it")
        if assistant is not None:
            raise ValueError("assistant_model: this model predicts one position per call and cannot use drafts")
    s.need(detailed or not s.output_scores, "output_scores", "needs return_dict=True")
    s.need(detailed or not s.output_logits, "output_logits", "needs return_dict=True")
    if stream is not None:
        s.need(s.num_beams == 1, "num_beams", "beams cannot be streamed: the best text is known only at the end")
    prompt = prompt_of(model, {name: value for name, value in inputs.items() if value is not None}, s)
    if assistant is not None:
        check_assistant(model, assistant, s, prompt)
    max_length = room(model, s, prompt, state)
    device, P, V = prompt.ids.device, prompt.ids.shape[1], model.spec.head.vocab_size
    ended = Ending(s, max_length, P, tokenizer, device)
    encoder = {} if prompt.memory is None else {"encoder_outputs": prompt.memory}
    stepper = Stepper(model, {**prompt.source, **encoder}, s.use_cache, s.prefill_chunk_size)
    stepper.wants_hidden = s.contrastive
    copies = s.num_beams if s.num_beams > 1 else s.num_return_sequences
    rng = SeededRows(s.seed, prompt.ids.shape[0], 1 if s.num_beams > 1 else copies, device)
    length, more, scores = prompt.num_read + max_length - P, max_length - P, None
    if prompt.embeds is None and state is None and copies == 1:
        scores = fast.read_prompt(stepper, prompt.aligned, prompt.mask, length, more, compiled)
    if scores is None:
        scores = stepper.begin(prompt.aligned, prompt.mask, prompt.embeds, state)
    ids = prompt.written(s.pad, V)
    encoded = None
    if stepper.pair and "input_ids" in prompt.source:
        read = prompt.source["input_ids"]
        encoded = Prompt(read, read, prompt.source.get("attention_mask"), None, {}).written(s.pad, V).clamp(max=V)
    rules = steps(s, P, max_length, encoded if stepper.pair else ids, device)
    stepper.repeat(copies)
    fast.capture_decode_step(stepper, length, more, compiled)
    job = Search(
        settings=s,
        stepper=stepper,
        prompt=prompt.ids,
        ids=ids.repeat_interleave(copies, 0),
        scores=scores.repeat_interleave(copies, 0),
        places=prompt.places().repeat_interleave(copies),
        steps=rules,
        ended=ended,
        rng=rng,
        detailed=detailed,
        stream=stream,
        source_ids=None if encoded is None else encoded.repeat_interleave(copies, 0),
    )
    if assistant is not None:
        job.draft = Stepper(assistant, prompt.source, s.use_cache, s.prefill_chunk_size)
        also = {name: value for name, value in prompt.read.items() if name in assistant.inputs}
        seen, _ = assistant.embed_towers(Call({"input_ids": prompt.aligned, **also}, kernel=assistant.kernel))
        job.draft.begin(prompt.aligned, prompt.mask, seen.get("inputs_embeds"))
        job.draft.repeat(copies)
    return job


def check_can_generate(model: TransformerModule, by_position: bool = False) -> None:
    """Raise ValueError if the model does not predict the next token. `by_position` also allows models that predict the
    token at a requested position (XLNet)."""
    generates = bool(model.spec.left_to_right) or (by_position and model.predicts_by_position)
    if not generates or not has_language_head(model):
        raise ValueError(f"{model.spec.architecture or 'this model'} {NOT_GENERATIVE}")


def has_language_head(model: TransformerModule) -> bool:
    head = model.spec.head  # FSMTModel computes scores, but returns them as hidden states
    scores = isinstance(model.head, HasScores) and not isinstance(head, VocabularyOutput)
    return scores and vocabulary_size(head) is not None


def check_assistant(model: TransformerModule, assistant: TransformerModule, s: Settings, prompt: Prompt) -> None:
    def need(good: bool, what: str) -> None:
        if not good:
            raise ValueError(f"assistant_model: {what}")

    mine, other = model.spec.head.vocab_size, vocabulary_size(assistant.spec.head)
    need(bool(assistant.spec.left_to_right) and has_language_head(assistant), f"it {NOT_GENERATIVE}")
    need(other == mine, f"its vocabulary has {other} tokens, the model's has {mine}")
    need(not assistant.training, "must be in eval mode: call assistant_model.eval()")
    need(assistant.spec.pair == model.spec.pair, "either both models need an encoder or none")
    need(
        "encoder_outputs" not in prompt.source, "it has its own encoder; pass the encoder's inputs, not encoder_outputs"
    )
    need(prompt.embeds is None or bool(prompt.read), "it has its own embedding; pass input_ids, not inputs_embeds")
    need(s.num_beams == 1, f"cannot draft for beam search, got num_beams={s.num_beams}")
    need(not s.contrastive, f"cannot draft for contrastive search, got penalty_alpha={s.penalty_alpha}")
    lookup = s.prompt_lookup_num_tokens
    need(lookup is None, f"cannot be combined with prompt_lookup_num_tokens={lookup}")
