"""Continuous batches: each text equals the text of a separate call, whichever requests join or finish."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from catalogue import Case, close, every_case, is_encoder_decoder, ours

import anyformer as af
from anyformer.generation.continuous_batch import ContinuousBatch
from anyformer.runtime.state import declarations

# type of state -> a model with it
KINDS = {
    "keys and values": "GPT2LMHeadModel", "window": "MixtralForCausalLM-window", "latent": "DeepseekV2ForCausalLM",
    "cross": "T5ForConditionalGeneration", "recurrent, convolution": "MambaForCausalLM", "marks": "RobertaForCausalLM",
    "sums": "RwkvForCausalLM", "experts of every token": "SwitchTransformersForConditionalGeneration",
}  # fmt: skip


def case_of(name: str) -> Case:
    found = [case for case in every_case() if case.id == name or case.id.startswith(f"{name}-")]
    return found[0]


def wishes(case: Case, vocab_size: int, number: int) -> dict[str, Any]:
    """Return a random prompt and settings for request `number`."""
    dice = random.Random(number)
    generator = torch.Generator().manual_seed(number)
    ids = torch.randint(5, vocab_size, (1, dice.randint(1, 9)), generator=generator)
    options: dict[str, Any] = {"input_ids": ids, "max_new_tokens": dice.randint(1, 12), "pad_token_id": 3}
    options["eos_token_id"] = dice.randint(5, 20)
    kind = dice.choice(("greedy", "sample", "sample", "beams"))
    if kind == "sample":
        options |= {"do_sample": True, "seed": number, "temperature": dice.choice((0.7, 1.3))}
        options["top_k"] = dice.choice((0, 8))
    elif kind == "beams":
        options |= {"num_beams": dice.choice((2, 3)), "length_penalty": dice.choice((0.5, 1.0, 2.0))}
    if dice.random() < 0.4:
        options["repetition_penalty"] = 1.3
    return options


@pytest.mark.parametrize("number", [16, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_each_writes_what_it_writes_alone(kind: str, number: int) -> None:
    case = case_of(KINDS[kind])
    model = ours(case)
    vocab_size = model.spec.head.vocab_size
    requested = [wishes(case, vocab_size, each) for each in range(number)]
    dice, running, requests = random.Random(0), ContinuousBatch(model), []
    joined_others = left_early = False
    while len(requests) < len(requested) or running.step():
        while len(requests) < len(requested) and dice.random() < 0.6:
            joined_others |= bool(running.requests)
            requests.append(running.add(**requested[len(requests)]))
        before = len(running.requests)
        if running.requests or running.waiting:
            running.step()
        left_early |= 0 < len(running.requests) < before
    assert joined_others and left_early, "requests must join and finish while others run"
    for wish, request in zip(requested, requests, strict=True):
        alone = af.generate(model, **wish, return_dict=True)
        assert torch.equal(request.result.sequences, alone.sequences), wish
        assert request.result.finish_reasons == alone.finish_reasons
        close(request.result.log_probs, alone.log_probs)
        if alone.sequences_scores is not None:
            close(request.result.sequences_scores, alone.sequences_scores)


def test_the_kinds_are_those_they_are_called_after() -> None:
    windows = [spec.window for _, spec in declarations(ours(case_of(KINDS["window"]))) if hasattr(spec, "window")]
    assert any(windows), "no window"
    assert is_encoder_decoder(ours(case_of(KINDS["cross"])).spec)


def test_what_is_done_is_forgotten() -> None:
    """When a long text is finished, the columns that only it used are dropped."""
    model = ours(case_of("GPT2LMHeadModel"))
    running = ContinuousBatch(model)
    running.add(input_ids=torch.randint(5, 90, (1, 30)), max_new_tokens=3, eos_token_id=[])
    running.step()
    short = running.add(input_ids=torch.tensor([[7, 8]]), max_new_tokens=9, eos_token_id=[])
    running.step()
    running.step()
    assert len(running.requests) == 1 and running.stepper is not None and running.stepper.state is not None
    assert running.stepper.length == running.stepper.state.length < 8
    while running.step():
        pass
    alone = af.generate(model, input_ids=torch.tensor([[7, 8]]), max_new_tokens=9, eos_token_id=[])
    assert torch.equal(short.result.sequences, alone)


def test_what_cannot_be_shared_is_refused() -> None:
    running = ContinuousBatch(ours(case_of("GPT2LMHeadModel")))
    ids = torch.tensor([[7, 8, 9]])
    with pytest.raises(ValueError, match="prompt_lookup_num_tokens.*continuous batch"):
        running.add(input_ids=ids, prompt_lookup_num_tokens=2)
    with pytest.raises(ValueError, match="penalty_alpha.*continuous batch"):
        running.add(input_ids=ids, penalty_alpha=0.6, top_k=4)
    with pytest.raises(ValueError, match="inputs_embeds.*continuous batch"):
        running.add(inputs_embeds=running.model.embedding.tokens(ids), use_cache=False)
    with pytest.raises(ValueError, match="max_new_tokens=-1"):
        running.add(input_ids=ids, max_new_tokens=-1)
    assert running.step() is False
