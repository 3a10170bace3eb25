"""Every objective through the real pipeline: JSON, records on disk, steps, micro-batches and gradients (T1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anyformer as af
from anyformer import families
from anyformer.data import Data, Loader, Plan, prepare
from anyformer.data.table import JSONLines
from anyformer.objectives.answer import Answer
from anyformer.objectives.auxiliary import Auxiliary
from anyformer.objectives.causal import NextToken
from anyformer.objectives.choose import Choose
from anyformer.objectives.classify import Classify
from anyformer.objectives.denoise import Denoise
from anyformer.objectives.distill import Distill
from anyformer.objectives.masked import Masked
from anyformer.objectives.mass import MASS
from anyformer.objectives.objective import Objective
from anyformer.objectives.permuted import Permuted
from anyformer.objectives.replaced import ReplacedTokens
from anyformer.objectives.sentences import MaskedAndNext
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.objectives.tag import Tag
from anyformer.objectives.translate import Translate
from anyformer.specs.codec import decode, encode
from small import close
from tiny import CONFIGS, OTHERS

TEXT = "thank you for inviting me to your party last week . the cat sat on the mat and dog ran"
WORDS = TEXT.split()


def spec(family: str, architecture: str | None = None, **more: Any) -> Any:
    config = {**(CONFIGS | OTHERS)[family], "vocab_size": 450, **more}
    config |= {"architectures": [architecture]} if architecture else {}
    config |= {"bert": {"max_position_embeddings": 64}, "gpt2": {"n_positions": 64}}.get(family, {})
    return families.find(family).read(config)


TWO = {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}, "pad_token_id": 0}
ONE = {"id2label": {0: "a"}, "label2id": {"a": 0}}
# name -> (objective, tokenizer, description of the model)
CASES: dict[str, tuple[Objective, str, Any]] = {
    "next": (NextToken(), "gpt2", spec("gpt2")),
    "masked": (Masked(), "bert", spec("bert")),
    "static": (Masked(length=32, copies=2, whole_words=True), "bert", spec("bert")),
    "permuted": (Permuted(), "bert", spec("xlnet")),
    "masked and next": (MaskedAndNext(length=48), "bert", spec("bert", "BertForPreTraining")),
    "spans": (SpanCorruption(), "words", spec("t5")),
    "denoise": (Denoise(), "words", spec("t5")),
    "mass": (MASS(), "words", spec("t5")),
    "translate": (Translate(), "words", spec("t5")),
    "replaced": (
        ReplacedTokens(generator=spec("bert", num_hidden_layers=1)), "bert",
        spec("bert", "BertForTokenClassification", **ONE),
    ),
    "distill": (Distill(of=Masked(), teacher="TEACHER", hard=1.0), "bert", spec("bert", num_hidden_layers=1)),
    "classify": (
        Classify(labels=("a", "b"), pair=True, length=40), "bert", spec("bert", "BertForSequenceClassification", **TWO)
    ),
    "number": (Classify(length=40), "bert", spec("bert", "BertForSequenceClassification", **ONE)),
    "auxiliary": (
        Auxiliary(of=Classify(labels=("a", "b"), length=40)), "gpt2",
        spec("gpt2", "GPT2ForSequenceClassification", **TWO),
    ),
    "answer": (Answer(length=32, stride=8, question_length=8), "bert", spec("bert", "BertForQuestionAnswering")),
    "tag": (Tag(labels=("a", "b")), "bert", spec("bert", "BertForTokenClassification", **TWO)),
    "choose": (Choose(choices=2, length=40), "bert", spec("bert", "BertForMultipleChoice")),
}  # fmt: skip


def examples(number: int = 12) -> list[dict[str, Any]]:
    out = []
    for i in range(number):
        words = [WORDS[(i * 7 + j * (i + 1)) % len(WORDS)] for j in range(6 + (i * 5) % 14)]
        text = " ".join(words)
        out.append({
            "text": text + " .\n" + text[::2] + " .\n" + " ".join(words[::-1]), "pair": " ".join(words[:3]),
            "label": i % 2, "words": words, "tags": ["ab"[j % 2] for j in range(len(words))], "source": text,
            "target": " ".join(words[::-1]), "question": "the cat ?", "context": text * 3,
            "answers": [{"text": words[0], "answer_start": 0}], "choices": [words[0], words[-1]],
        })  # fmt: skip
    return out


@pytest.mark.parametrize("name", CASES)
def test_micro_batches_are_one_batch(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    objective, which, description = CASES[name]
    assert decode(json.loads(json.dumps(encode(objective)))) == objective
    if isinstance(objective, Distill):
        af.save(af.build(spec("bert"), seed=1), tmp_path / "teacher")
        objective = objective.replace(teacher=str(tmp_path / "teacher"))
    tokenizer: Any = request.getfixturevalue(which)
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, examples())))
    data = Data(train=JSONLines(path=str(tmp_path / "train.jsonl")))
    objective = objective.ready(tokenizer)
    assert objective.ready(tokenizer) == objective
    split = prepare(data, objective, tokenizer, tmp_path / "data", 64).train
    assert split.bad == 0
    plan = Plan(split, examples=8, length=objective.reads(40), packs=objective.packs)
    model = af.build(description, seed=0).eval()
    with torch.no_grad():  # new heads start near zero
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.05)
    module = objective.module(model).eval()
    whole = gradients(objective, module, Loader(plan, objective, pin=False).make(3).batches)
    pieces = Loader(plan, objective, micro=3, pin=False).make(3)
    assert len(pieces.batches) == 3
    parts = gradients(objective, module, pieces.batches)
    assert abs(whole[0] - parts[0]) < 1e-5 * max(1, abs(whole[0]))
    assert whole[1].keys() == parts[1].keys()
    for address in whole[1]:
        close(whole[1][address], parts[1][address], 2e-5)
    assert all(gradient.isfinite().all() for gradient in whole[1].values())


def gradients(objective: Objective, module: nn.Module, batches: list[Any]) -> tuple[float, dict[str, torch.Tensor]]:
    module.zero_grad()
    totals: dict[str, float] = {}
    for batch in batches:
        for term, weight in objective.weights(batch).items():
            totals[term] = totals.get(term, 0.0) + weight
    loss = 0.0
    for batch in batches:
        sums = objective.losses(module, batch)
        assert sums.keys() == totals.keys()
        total: Any = sum(value / totals[term] for term, value in sums.items())
        total.backward()
        loss += float(total.detach())
    return loss, {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


LONGER = [pytest.param(name, marks=pytest.mark.slow) for name in ("masked", "spans", "replaced", "distill")]


@pytest.mark.parametrize("name", ["next", *LONGER])
def test_one_graph_without_breaks(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    objective, which, description = CASES[name]
    if isinstance(objective, Distill):
        af.save(af.build(spec("bert"), seed=1), tmp_path / "teacher")
        objective = objective.replace(teacher=str(tmp_path / "teacher"))
    tokenizer: Any = request.getfixturevalue(which)
    objective = objective.ready(tokenizer)
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, examples())))
    data = Data(train=JSONLines(path=str(tmp_path / "train.jsonl")))
    split = prepare(data, objective, tokenizer, tmp_path / "data", 64).train
    plan = Plan(split, examples=4, length=objective.reads(40), packs=True)
    (batch,) = Loader(plan, objective, pin=False).make(0).batches
    module = objective.module(af.build(description, seed=0)).eval()

    def step(batch: Any) -> Any:
        return sum(objective.losses(module, batch).values())

    torch._dynamo.reset()
    close(torch.compile(step, fullgraph=True, backend="aot_eager")(batch), step(batch), 1e-5)
