"""A mistake is one line that names the parameter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from writers import V, decoder, ids, pair

NEXT = torch.tensor([[7, 8, 9]])

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"max_new_tokens": 0}, "max_new_tokens=0"),
    ({"max_new_tokens": -3}, "max_new_tokens=-3"),
    ({"max_new_tokens": 10**12}, "max_new_tokens=1000000000000"),
    ({"max_new_tokens": 2**24 + 1}, "max_new_tokens=16777217.*from 1 to 16777216"),
    ({"max_new_tokens": 2.5}, "max_new_tokens=2.5"),
    ({"max_new_tokens": True}, "max_new_tokens=True"),
    ({"max_new_tokens": "5"}, "max_new_tokens='5'"),
    ({"max_new_tokens": 40}, "max_new_tokens=40: 43 .* 32 positions"),
    ({"max_length": 3}, "max_length=3: the prompt .* 3 tokens"),
    ({"max_length": 50}, "max_length=50: 50 tokens do not fit"),
    ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens=5: more than max_new_tokens=4"),
    ({"min_length": 9, "max_length": 8}, "min_length=9: more than max_length=8"),
    ({"do_sample": True, "temperature": 0}, "temperature=0"),
    ({"do_sample": True, "temperature": float("nan")}, "temperature=nan"),
    ({"do_sample": True, "temperature": float("inf")}, "temperature=inf"),
    ({"do_sample": True, "top_p": 0.0}, "top_p=0.0"),
    ({"do_sample": True, "top_p": 1.5}, "top_p=1.5"),
    ({"do_sample": True, "top_k": -1}, "top_k=-1"),
    ({"do_sample": True, "min_p": 2}, "min_p=2"),
    ({"do_sample": True, "typical_p": -0.5}, "typical_p=-0.5"),
    ({"do_sample": True, "epsilon_cutoff": 3.0}, "epsilon_cutoff=3.0"),
    ({"do_sample": True, "seed": [1, 2]}, "seed=.*one for each of the 1 prompts"),
    ({"do_sample": 1}, "do_sample=1: .*True or False"),
    ({"temperature": 0.5}, "temperature=0.5: does nothing without do_sample=True"),
    ({"top_k": 5}, "top_k=5: does nothing without do_sample=True"),
    ({"length_penalty": 2.0}, "length_penalty=2.0: does nothing without num_beams above 1"),
    ({"num_beams": 0}, "num_beams=0"),
    ({"num_beams": 41}, "num_beams=41: more than the 40 tokens"),
    ({"num_beams": 2, "early_stopping": "maybe"}, "early_stopping='maybe'"),
    ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences=3: more than num_beams=2"),
    ({"num_return_sequences": 2}, "num_return_sequences=2: more than num_beams=1 without do_sample"),
    ({"num_beams": 2, "stream": print}, "num_beams=2: beams cannot be streamed"),
    ({"num_beams": 2, "penalty_alpha": 0.5}, "penalty_alpha=0.5: contrastive search .*num_beams=2"),
    ({"do_sample": True, "penalty_alpha": 0.5}, "penalty_alpha=0.5: contrastive search does not sample"),
    ({"penalty_alpha": 1.5}, "penalty_alpha=1.5"),
    ({"penalty_alpha": 0.5, "top_k": 1}, "top_k=1: contrastive"),
    (
        {"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 0.5},
        "num_beam_groups=3: does not divide num_beams=4",
    ),
    ({"num_beams": 4, "num_beam_groups": 2}, "diversity_penalty=0.0"),
    ({"num_beams": 4, "diversity_penalty": 0.5}, "diversity_penalty=0.5: needs num_beam_groups"),
    ({"repetition_penalty": 0.0}, "repetition_penalty=0.0"),
    ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size=-1"),
    ({"bad_words_ids": [[]]}, r"bad_words_ids=\[\[\]\]"),
    ({"bad_words_ids": [[99]]}, "bad_words_ids=.*outside the vocabulary of 40"),
    ({"sequence_bias": {(99,): 1.0}}, "sequence_bias=.*outside the vocabulary"),
    ({"sequence_bias": [3]}, "sequence_bias="),
    ({"suppress_tokens": [-1]}, "suppress_tokens="),
    ({"forced_eos_token_id": 40}, "forced_eos_token_id=40"),
    ({"stop_strings": "x"}, "stop_strings need a tokenizer"),
    ({"stop_strings": [""], "tokenizer": object()}, "stop_strings="),
    ({"prompt_lookup_num_tokens": 0}, "prompt_lookup_num_tokens=0"),
    ({"prompt_lookup_num_tokens": 3, "num_beams": 2}, "prompt_lookup_num_tokens=3: .*num_beams=2"),
    ({"prompt_lookup_num_tokens": 3, "penalty_alpha": 0.5}, "prompt_lookup_num_tokens=3: .*penalty_alpha"),
    ({"lang_to_id": {"en": 1, "de": "2"}}, "lang_to_id=.*names and their tokens"),
    ({"prefill_chunk_size": 0}, "prefill_chunk_size=0"),
    ({"output_scores": True}, "output_scores=True: needs return_dict=True"),
    ({"output_attentions": True}, "output_attentions: .*does not collect"),
    ({"max_time": 3.0}, "generate has no option 'max_time'"),
    ({"num_beens": 3}, "no option 'num_beens'; did you mean 'num_beams'"),
    ({"labels": NEXT}, "labels: .*training"),
    ({"position_ids": NEXT}, "position_ids: positions follow"),
    ({"attention_mask": torch.ones(1, 2)}, r"attention_mask .*\(1, 2\).*\(1, 3\)"),
    ({"attention_mask": torch.zeros(1, 3)}, "attention_mask masks the whole prompt in row 0"),
]


@pytest.mark.parametrize(("options", "line"), MISTAKES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_bad_parameter_is_named(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        af.generate(decoder(), NEXT, **options)
    assert "\n" not in str(caught.value)
    assert af.generate(decoder(), NEXT, max_new_tokens=1, eos_token_id=[]).shape == (1, 4), "the next call works"


@pytest.mark.parametrize(
    ("prompt", "line"),
    [
        (torch.zeros(1, 0, dtype=torch.long), "the prompt is empty: input_ids"),
        (torch.zeros(0, 3, dtype=torch.long), "input_ids has no rows"),
        (torch.zeros(3, dtype=torch.long), "input_ids must be a tensor of shape"),
        ([[1, 2]], "input_ids.*tensor, got a list"),
        (torch.zeros(1, 33, dtype=torch.long), "input_ids.* 33 tokens .* 32 positions"),
        (torch.tensor([[1, 99]]), "token id 99 .* 40"),
        (None, "prompt: pass input_ids"),
    ],
)
def test_a_bad_prompt_is_named(prompt: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        af.generate(decoder(), prompt, max_new_tokens=1)


def test_prompts_up_to_the_last_position() -> None:
    assert af.generate(decoder(), ids(1, 32), max_new_tokens=1, eos_token_id=[]).shape == (1, 33)
    assert af.generate(decoder(), ids(1, 30), eos_token_id=[]).shape == (1, 33), "20 tokens, or as many as fit"
    padded = torch.cat((torch.zeros(1, 5, dtype=torch.long), ids(1, 30)), dim=1)
    mask = (torch.arange(35) >= 5).long()[None]
    out = af.generate(decoder(), padded, attention_mask=mask, max_new_tokens=3, eos_token_id=[])
    assert torch.equal(out[:, 35:], af.generate(decoder(), ids(1, 30), max_new_tokens=3, eos_token_id=[])[:, 30:])


def test_a_bad_assistant_is_named() -> None:
    def refuse(line: str, model: Any = None, **options: Any) -> None:
        with pytest.raises(ValueError, match=f"assistant_model: {line}"):
            af.generate(model or decoder(), NEXT, **options)

    refuse(".*vocabulary.* 39 .* 40", assistant_model=decoder(39))
    refuse("cannot draft for beam search, .*num_beams=2", assistant_model=decoder(), num_beams=2)
    refuse("cannot draft for contrastive", assistant_model=decoder(), penalty_alpha=0.5)
    refuse("cannot be combined with prompt_lookup_num_tokens=2", assistant_model=decoder(), prompt_lookup_num_tokens=2)
    refuse("either both models need an encoder", assistant_model=pair())
    memory = torch.zeros(1, 3, 512)
    refuse("it has its own encoder", pair(), assistant_model=pair(), encoder_outputs=memory)
    bare = af.build(af.override(decoder().spec, {"head": None, "ties": ()})).eval()
    refuse("it has no language-model head", assistant_model=bare)
    with pytest.raises(ValueError, match="has no language-model head"):
        af.generate(bare, NEXT)
    with pytest.raises(ValueError, match="eval mode"):
        af.generate(af.build(decoder().spec).train(), NEXT)


def test_states_that_do_not_fit() -> None:
    model = decoder()
    with pytest.raises(ValueError, match="max_new_tokens=6: 9 tokens .* 7 .*past_key_values"):
        af.generate(model, NEXT, max_new_tokens=6, past_key_values=model.new_state(1, capacity=7))
    out = af.generate(model, NEXT, max_new_tokens=2, eos_token_id=[], return_dict=True)
    with pytest.raises(ValueError, match="past_key_values already contains 4 tokens"):
        af.generate(model, NEXT, max_new_tokens=2, past_key_values=out.past_key_values)
    with pytest.raises(ValueError, match="use_cache=False: past_key_values"):
        af.generate(model, NEXT, past_key_values=model.new_state(), use_cache=False)


# -- generation_config.json -------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    af.save(decoder(), tmp_path)
    return tmp_path


def configured(folder: Path, **fields: Any) -> Any:
    (folder / "generation_config.json").write_text(json.dumps(fields))
    return af.load(folder)


def test_generation_config_is_read_and_the_caller_wins(saved: Path) -> None:
    plain = decoder()
    model = configured(saved, max_new_tokens=5, num_beams=3, eos_token_id=[], transformers_version="5.0", top_k=10)
    expected = af.generate(plain, NEXT, max_new_tokens=5, num_beams=3, eos_token_id=[])
    assert torch.equal(af.generate(model, NEXT), expected)
    assert torch.equal(
        af.generate(model, NEXT, num_beams=1), af.generate(plain, NEXT, max_new_tokens=5, eos_token_id=[])
    )
    assert af.generate(model, NEXT, max_length=4).shape[1] == 4
    assert torch.equal(af.generate(model, NEXT, num_beams=None), expected), "None uses the value in the file"


@pytest.mark.parametrize(
    "fields",
    [{"guidance_scale": 2.0}, {"token_healing": True}, {"max_time": 3}, {"dola_layers": "low"}, {"top_h": 0.4},
     {"watermarking_config": {"bias": 2.0}}, {"force_words_ids": [[3]]}, {"something_new": 1}],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_what_generation_config_asks_and_cannot_be_is_refused(saved: Path, fields: dict[str, Any]) -> None:
    name = next(iter(fields))
    with pytest.raises(ValueError, match=f"generation_config.json: {name}=.*not supported"):
        af.generate(configured(saved, **fields), NEXT)


def test_what_generation_config_says_and_does_nothing_is_not(saved: Path) -> None:
    fields = {"guidance_scale": 1.0, "token_healing": False, "cache_implementation": "static", "dola_layers": None,
              "temperature": 0.6, "top_p": 0.9, "output_scores": True, "something_token_id": 3}  # fmt: skip
    assert af.generate(configured(saved, **fields), NEXT, max_new_tokens=2, eos_token_id=[]).shape == (1, 5)


def test_names_of_transformers() -> None:
    out = af.generate(
        decoder(), NEXT, max_new_tokens=3, eos_token_id=[], return_dict_in_generate=True, output_logits=True
    )
    assert len(out.scores) == len(out.logits) == 3 and out.logits[0].shape == (1, V)
    out = af.generate(decoder(), NEXT, max_new_tokens=3, eos_token_id=[], return_dict=True, output_scores=False)
    assert out.scores is None and out.logits is None and out.log_probs.shape == (1, 3)
