"""XLNet: permutations, predicted tokens, the memory of earlier segments, generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases.xlnet import BACK, SMALL
from catalogue import Case, close, make_inputs, ours, published, shared
from torch import Tensor

import anyformer as af
from anyformer import families
from anyformer.cli import main
from anyformer.objectives.classify import Classify
from anyformer.objectives.heads import forward_to_head, logits_of
from anyformer.transforms.recompute import recompute

LM = Case("xlnet", "XLNetLMHeadModel", {**SMALL, "n_layer": 3}, "orders")
BODY = Case("xlnet", "XLNetModel", {**SMALL, "n_layer": 3, "clamp_len": 5}, "orders")
KEEPS = Case("xlnet", "XLNetModel", {**SMALL, "mem_len": 11, "reuse_len": 6}, "keeps")
LEFT = Case("xlnet", "XLNetLMHeadModel", {**SMALL, **BACK, "mem_len": None}, "left")
FAR = Case("xlnet", "XLNetModel", {**SMALL, **BACK, "same_length": True, "mem_len": 30}, "far")
MIRROR = Case("xlnet", "XLNetModel", {**SMALL, "bi_data": True}, "mirror")
ANSWERS = Case("xlnet", "XLNetForQuestionAnswering", SMALL, "answers")
SHOW = {"output_hidden_states": True, "output_attentions": True}


def order(batch: int, length: int, count: int = 4, seed: int = 0) -> dict[str, Tensor]:
    """Return the tokens to predict and a random permutation mask. All tokens see the first one."""
    generator = torch.Generator().manual_seed(seed)
    hidden = (torch.rand(batch, length, length, generator=generator) < 0.4).float()
    hidden[:, :, 0] = 0
    asked = torch.zeros(batch, count, length)
    for row in asked:
        row[torch.arange(count), 1 + torch.randperm(length - 1, generator=generator)[:count]] = 1
    return {"perm_mask": hidden, "target_mapping": asked}


def compare(theirs: Any, mine: Any, asked: Tensor | None = None) -> None:
    """Compare every field. The published class has attention weights of the second stream for every token of the text,
    but only the predicted tokens' weights are meaningful; ours has only these."""
    assert {*theirs} <= {*mine}
    for name, value in theirs.items():
        if name == "attentions" and asked is not None:
            for (h, g), (my_h, my_g) in zip(value, mine[name], strict=True):
                close(my_h, h)
                close(my_g, torch.einsum("bhts,bpt->bhps", g, asked))
        elif isinstance(value, Tensor):
            close(mine[name], value)
        else:
            for a, b in zip(mine[name], value, strict=True):
                close(a, b)


@pytest.mark.parametrize("case", [LM, BODY, MIRROR], ids=lambda case: case.id)
@pytest.mark.parametrize("padded", [False, True])
def test_orders_and_tokens_asked_for(case: Case, padded: bool) -> None:
    theirs, mine, inputs = published(case)[0], shared(case), make_inputs(case, batch=4, length=13)
    if padded:
        inputs["attention_mask"] = torch.ones(4, 13)
        inputs["attention_mask"][1, -3:] = inputs["attention_mask"][2, :2] = 0
        inputs["attention_mask"][2, 0] = 1
    for kernel in ("eager", "sdpa"):
        mine.kernel = kernel
        for more in ({}, order(4, 13)):
            for given in ({"perm_mask": order(4, 13)["perm_mask"]}, more):
                with torch.no_grad():
                    compare(theirs(**inputs, **given, **SHOW), mine(**inputs, **given, **SHOW),
                            given.get("target_mapping"))  # fmt: skip
    mine.kernel = "auto"


def test_the_loss_of_tokens_asked_for() -> None:
    theirs, mine, inputs = published(LM)[0], ours(LM), make_inputs(LM, batch=3)
    inputs |= {**order(3, 17), "labels": torch.randint(5, 99, (3, 4))}
    inputs["labels"][1, 2] = -100
    close(mine(**inputs).loss, theirs(**inputs).loss)
    mine(**inputs).loss.backward()
    theirs(**inputs).loss.backward()
    close(mine.embedding.mask_embedding.grad, theirs.transformer.mask_emb.grad[0, 0])
    close(mine.embedding.tokens.weight.grad, theirs.transformer.word_embedding.weight.grad)


@pytest.mark.slow  # every day: a forward pass (N9), recomputed (N8)
def test_compiled_and_run_again_in_the_backward_pass() -> None:
    inputs = {**make_inputs(LM), **order(2, 17), "labels": torch.randint(5, 99, (2, 4))}
    model, again = ours(LM), recompute(ours(LM))
    for each in (model, again):
        each(**inputs).loss.backward()
    for (name, a), b in zip(model.named_parameters(), again.parameters(), strict=True):
        assert a.grad is not None, name
        close(b.grad, a.grad, 1e-6)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
    with torch.no_grad():
        close(compiled(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("case", [LM, KEEPS, FAR], ids=lambda case: case.id)
def test_what_is_kept_goes_on(case: Case) -> None:
    """Three consecutive texts with segments, predicted tokens and padding; separate rows if the published class cannot
    mask a batch causally."""
    theirs, mine = published(case)[0], shared(case)
    rows = 1 if case is FAR else 2
    kept = a = b = None
    for seed in range(3):
        inputs = {**make_inputs(case, batch=rows, length=9, seed=seed), **(order(rows, 9, seed=seed) if seed else {})}
        if seed == 2:
            inputs["input_mask"] = torch.zeros(rows, 9)
            inputs["input_mask"][0, -2:] = 1
            del inputs["target_mapping"]
        with torch.no_grad():
            a, b = theirs(**inputs, mems=kept, **SHOW), mine(**inputs, mems=kept, **SHOW)
        compare(a, b, inputs.get("target_mapping"))
        kept = b.mems
    assert kept[0].shape[0] == {"keeps": 11, "orders": 27, "far": 27}[case.name]
    with torch.no_grad():
        assert mine(**inputs, use_mems=False).mems is None
    assert ours(case).train()(**inputs).mems is None


def test_left_to_right_what_is_kept_changes_nothing() -> None:
    model, inputs = shared(LEFT), make_inputs(LEFT)
    ids, kinds = inputs["input_ids"], torch.zeros_like(inputs["token_type_ids"])
    with torch.no_grad():
        whole = model(input_ids=ids, token_type_ids=kinds).logits
        first = model(input_ids=ids[:, :8], token_type_ids=kinds[:, :8])
        rest = model(input_ids=ids[:, 8:], token_type_ids=kinds[:, 8:], mems=first.mems)
    close(torch.cat((first.logits, rest.logits), 1), whole)


def test_a_token_asked_for_that_sees_nothing_is_zero_and_finite() -> None:
    """The published class returns the mean of all values, including the predicted one."""
    model, inputs = ours(LM), make_inputs(LM)
    given = order(2, 17)
    given["perm_mask"][:] = 1
    for kernel in ("eager", "sdpa"):
        model.kernel = kernel
        out = model(**inputs, **given)
        other = model(**{**inputs, "input_ids": inputs["input_ids"].flip(0)}, **given)
        assert out.logits.isfinite().all() and torch.equal(out.logits, other.logits)


def test_padding_tokens_asked_for() -> None:
    """A row of target_mapping without a position does not change other rows."""
    model, inputs, given = shared(LM), make_inputs(LM), order(2, 17)
    longer = {**given, "target_mapping": torch.nn.functional.pad(given["target_mapping"], (0, 0, 0, 3))}
    with torch.no_grad():
        close(model(**inputs, **longer).logits[:, :4], model(**inputs, **given).logits)
        close(model(**inputs, **longer).logits, published(LM)[0](**inputs, **longer).logits)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"perm_mask": torch.zeros(2, 17, 3)}, "perm_mask.*shape"),
        ({"target_mapping": torch.zeros(2, 17)}, "target_mapping must be"),
        ({"target_mapping": torch.ones(2, 1, 17)}, "no token twice"),
        ({"target_mapping": torch.eye(17)[[3, 3]].expand(2, 2, 17)}, "no token twice"),
        ({"target_mapping": torch.eye(17)[:2].expand(2, 2, 17) / 2}, "no token twice"),
        ({"mems": [torch.zeros(3, 2, 32)]}, "mems.* 3 "),
        ({"mems": [torch.zeros(3, 2, 31)] * 3}, "mems.0 must be"),
        ({"input_mask": torch.zeros(2, 17), "attention_mask": torch.ones(2, 17)}, "input_mask.*attention_mask"),
        ({"use_mems": 1}, "use_mems.*True or False"),
        ({"mems": [torch.zeros(3, 2, 32)] * 3, "document_ids": torch.zeros(2, 17, dtype=torch.long)}, "document_ids"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(given: dict, line: str) -> None:
    with pytest.raises(ValueError, match=line) as error:
        shared(LM)(input_ids=make_inputs(LM)["input_ids"], **given)
    assert "\n" not in str(error.value)


def test_a_classifier_reads_what_objectives_pad_on_the_right() -> None:
    """The last position represents a text: rows of a batch give the same result as single texts."""
    model = shared(Case("xlnet", "XLNetForSequenceClassification", SMALL, "reads"))
    objective = Classify(labels=("a", "b"))
    generator = np.random.default_rng(0)
    rows = [generator.integers(6, 99, size=size) for size in (5, 9, 7)]
    records = [{"input_ids": ids, "token_type_ids": 0 * ids, "label": np.asarray(1)} for ids in rows]
    with torch.no_grad():
        alone, whole = (
            torch.cat([logits_of(model, forward_to_head(model, objective.collate(each, 5))) for each in batches])
            for batches in ([[record] for record in records], [records])
        )  # fmt: skip
    close(whole, alone)


# -- answers ----------------------------------------------------------------------------------------------------------


def test_likely_answers_with_what_cannot_be_one() -> None:
    theirs, mine, inputs = published(ANSWERS)[0], shared(ANSWERS), make_inputs(ANSWERS)
    inputs |= {"p_mask": torch.zeros(2, 17), "cls_index": torch.tensor([3, 16])}
    inputs["p_mask"][:, :6] = 1
    with torch.no_grad():
        a, b = theirs(**inputs), mine(**inputs)
    compare(a, b)
    assert torch.equal(a.start_top_index, b.start_top_index) and torch.equal(a.end_top_index, b.end_top_index)
    labels = {"start_positions": torch.tensor([7, 9]), "end_positions": torch.tensor([8, 16])}
    for more in ({}, {"is_impossible": torch.tensor([0.0, 1.0])}):
        with torch.no_grad():
            a, b = theirs(**inputs, **labels, **more), mine(**inputs, **labels, **more)
        close(b.loss, a.loss)
        assert "start_top_index" not in b
    with pytest.raises(ValueError, match=" 3 tokens"):
        mine(input_ids=inputs["input_ids"][:, :3])


# -- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [LM, LEFT], ids=lambda case: case.id)
@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2}])
def test_writing(case: Case, settings: dict) -> None:
    """Equal to transformers if it reads the text again for each token. With its memory it generates another text,
    unless the model is causal: cached tokens do not see later ones."""
    theirs, mine, ids = published(case)[0], shared(case), make_inputs(case, batch=2, length=6)["input_ids"]
    ids = ids.clamp(min=6)  # the published class attends to padding in a prompt
    if case is LEFT:  # its published class cannot mask a batch
        ids, settings = ids[:1], {name: value for name, value in settings.items() if name != "num_beams"}
    usual = {"max_new_tokens": 7, "do_sample": False, "pad_token_id": 5, **settings}
    expected = theirs.generate(ids, use_mems=False, **usual)
    assert torch.equal(af.generate(mine, input_ids=ids, **usual), expected)
    if case is LEFT:
        assert torch.equal(theirs.generate(ids, **usual), expected)


def test_writing_after_pads_and_in_one_line_what_it_cannot() -> None:
    model, ids = shared(LM), make_inputs(LM, batch=1, length=6)["input_ids"]
    padded, mask = torch.nn.functional.pad(ids, (3, 0), value=5), torch.tensor([[0] * 3 + [1] * 6])
    plain = af.generate(model, input_ids=ids, max_new_tokens=5)
    assert torch.equal(af.generate(model, input_ids=padded, attention_mask=mask, max_new_tokens=5)[:, 3:], plain)
    for given, line in (
        ({"assistant_model": model}, "assistant_model.*one position per call"),
        ({"prompt_lookup_num_tokens": 2}, "prompt_lookup_num_tokens=2.*one position per call"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=line):
            af.generate(model, input_ids=ids, **given)
    with pytest.raises(ValueError, match="left to right"):
        af.generate(shared(BODY), input_ids=ids)


def test_on_the_command_line_it_writes_and_fills_no_masks(tmp_path: Path, capsys: Any) -> None:
    import transformers

    special = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>", "\u2581", *"abcde"]
    pieces = [(each, 0.0 if "<" in each else -2.0) for each in special]
    transformers.XLNetTokenizer(vocab=pieces).save_pretrained(tmp_path)
    spec = families.find("xlnet").read({**SMALL, "vocab_size": len(special)})
    af.save(af.build(spec), tmp_path, format="hf")
    assert main(["generate", str(tmp_path), "ab", "--max-new-tokens", "4"]) == 0
    assert capsys.readouterr().out.strip()
    assert main(["run", "fill-mask", str(tmp_path), "a <mask> b"]) == 2
    assert "this model has no masks" in capsys.readouterr().err
