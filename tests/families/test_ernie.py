"""ERNIE's tasks: the first by default, one for a whole text, and generated tokens belong to the last."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from catalogue import close, every_case, make_inputs, published, shared

import anyformer as af

MODEL = next(case for case in every_case() if case.id == "ErnieModel")
WRITER = next(case for case in every_case() if case.id == "ErnieForCausalLM")


@torch.no_grad()
def test_without_labels_the_first_task_and_one_label_for_a_whole_text() -> None:
    model, ids = shared(MODEL), make_inputs(MODEL)["input_ids"]
    first, second = torch.zeros_like(ids), torch.tensor([[2], [3]])

    def read(**tasks: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, **tasks).last_hidden_state

    assert torch.equal(read(), read(task_type_ids=first))
    assert torch.equal(read(task_type_ids=second), read(task_type_ids=second.expand_as(ids).contiguous()))
    assert not torch.allclose(read(), read(task_type_ids=second), atol=1e-3)


@torch.no_grad()
def test_without_task_vectors_labels_are_ignored_as_published() -> None:
    case = next(case for case in every_case() if case.id == "ErnieForMaskedLM-no-tasks")
    inputs = make_inputs(case)
    inputs["task_type_ids"] = torch.ones_like(inputs["input_ids"])
    close(shared(case)(**inputs)[0], published(case)[0](**inputs)[0])


def test_labels_that_are_wrong_are_named() -> None:
    model, ids = shared(MODEL), make_inputs(MODEL)["input_ids"]
    for bad in (4, -1):
        with pytest.raises(ValueError, match=rf"task_type_ids.*{bad}.*4"):
            model(input_ids=ids, task_type_ids=torch.full_like(ids, bad))
    with pytest.raises(ValueError, match=r"task_type_ids.*shape \(2, 17\).* got \(2, 5\)"):
        model(input_ids=ids, task_type_ids=ids[:, :5] * 0)
    with pytest.raises(ValueError, match="task_type_ids.*integers"):
        model(input_ids=ids, task_type_ids=ids * 0.0)


@pytest.mark.parametrize("whole", [False, True])
@torch.no_grad()
def test_what_is_written_belongs_to_the_task_the_prompt_ended_in(whole: bool) -> None:
    """Also with padded prompts, and with one label for the whole text: equal scores."""
    model, ids = shared(WRITER), make_inputs(WRITER, length=6)["input_ids"]
    tasks = torch.tensor([[3], [1]]) if whole else torch.tensor([[0, 1, 2, 3, 0, 3], [3, 2, 2, 0, 1, 2]])
    text, kinds, expected = ids, tasks.expand_as(ids), []
    for _ in range(4):
        expected.append(model(input_ids=text, task_type_ids=kinds, use_cache=False).logits[:, -1])
        text, kinds = torch.cat((text, expected[-1].argmax(-1)[:, None]), 1), torch.cat((kinds, kinds[:, -1:]), 1)

    def write(**inputs: torch.Tensor) -> None:
        found = af.generate(model, **inputs, max_new_tokens=4, eos_token_id=[], return_dict=True)
        assert torch.equal(found.sequences[:, -4:], text[:, -4:])
        close(torch.stack(found.scores), torch.stack(expected))

    write(input_ids=ids, task_type_ids=tasks)
    labels = tasks if whole else F.pad(tasks, (0, 2))
    write(input_ids=F.pad(ids, (0, 2)), attention_mask=F.pad(torch.ones_like(ids), (0, 2)), task_type_ids=labels)
