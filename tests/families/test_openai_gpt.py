"""A feature that only GPT has: two heads that read several choices at once."""

from __future__ import annotations

import pytest
import torch
from catalogue import Case, cases, close, make_inputs, published, shared
from test_loading import compare

from anyformer import families

DOUBLE = [case for case in cases() if case.architecture == "OpenAIGPTDoubleHeadsModel"]


@pytest.mark.parametrize("case", DOUBLE, ids=lambda case: case.id)
@torch.no_grad()
def test_choices_are_read_each_on_its_own(case: Case) -> None:
    ids = make_inputs(case, batch=6, length=9)["input_ids"].view(2, 3, 9)
    labels, places = ids.flip(0), torch.tensor([[8, 3, 0], [1, 7, 8]])
    inputs = {"input_ids": ids, "token_type_ids": ids.flip(-1), "labels": labels, "output_hidden_states": True}
    if case.name == "":  # otherwise the published class takes its summary over the choices
        inputs |= {"mc_token_ids": places, "mc_labels": torch.tensor([1, 2])}
    theirs, mine = published(case)[0](**inputs), shared(case)(**inputs)
    compare(theirs, mine)
    assert mine.logits.shape == (2, 3, 9, 99) and mine.hidden_states[-1].shape[:3] == (2, 3, 9)
    if case.name == "":
        assert mine.mc_logits.shape == (2, 3)
        alone = shared(case)(input_ids=ids[1], token_type_ids=ids[1].flip(-1), mc_token_ids=places[1])
        close(mine.mc_logits[1], alone.mc_logits)
        assert not torch.allclose(alone.mc_logits, shared(case)(input_ids=ids[1]).mc_logits)


@pytest.mark.parametrize("tie", [True, False])
def test_two_heads_that_are_tied_or_not_can_be_written(tie: bool) -> None:
    family = families.find("openai-gpt")
    config = {"architectures": ["OpenAIGPTDoubleHeadsModel"], "n_layer": 1, "tie_word_embeddings": tie}
    spec = family.read(config)
    assert bool(spec.ties) == tie and family.write(spec)["tie_word_embeddings"] == tie
