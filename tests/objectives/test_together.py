"""Objectives with a second model or a second term: distillation, the auxiliary language model, replaced tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer import families
from anyformer.data import CSV, Data
from anyformer.evaluate.split import loss_module
from anyformer.inputs.audio_features import AudioProcessor
from anyformer.models import Output
from anyformer.objectives.auxiliary import Auxiliary
from anyformer.objectives.batches import Batch
from anyformer.objectives.causal import NextToken
from anyformer.objectives.classify import Classify
from anyformer.objectives.distill import Distill
from anyformer.objectives.masked import Masked
from anyformer.objectives.multi_label import MultiLabel
from anyformer.objectives.objective import Objective
from anyformer.objectives.replaced import ReplacedTokens
from anyformer.objectives.tag import Tag
from anyformer.objectives.transcribe import Transcribe
from anyformer.objectives.translate import Translate
from anyformer.objectives.vocabulary_info import VocabularyInfo
from anyformer.train.run import Batch as BatchSize
from anyformer.train.run import Run
from anyformer.train.start import make_model
from small import close
from tiny import CONFIGS, model_of

KNOWN = VocabularyInfo(size=50, mask=4, begin=2, end=3, apart=(0, 2, 3, 4))
DISTILBERT = {"dim": "hidden_size", "n_heads": "num_attention_heads", "hidden_dim": "intermediate_size"}
ROWS = [np.array([2, *range(10, 10 + n), 3], np.int32) for n in (25, 12)]


def built(family: str, architecture: str, seed: int = 0, **more: Any) -> Any:
    config = {**CONFIGS[family], "architectures": [architecture], **more}
    model = af.build(families.find(family).read(config), seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def small_student(**more: int) -> Any:
    bert = {ours: CONFIGS["bert"][theirs] for ours, theirs in DISTILBERT.items()}
    config = {**bert, "architectures": ["DistilBertForMaskedLM"], "vocab_size": 50, "n_layers": 2, **more}
    return af.build(families.find("distilbert").read(config), seed=1).eval()


def masked_batch(objective: Objective) -> Batch:
    seen = [objective.vary({"input_ids": row}, np.random.default_rng(i)) for i, row in enumerate(ROWS)]
    return objective.collate(seen, 0)


# -- distillation -----------------------------------------------------------------------------------------------------


def test_distilbert_terms_by_hand() -> None:
    """As published: 5 KL at temperature 2 (times 4) + 2 MLM + 1 cosine, means over real tokens and over labels."""
    student, teacher = built("bert", "BertForMaskedLM", 1, num_hidden_layers=1), built("bert", "BertForMaskedLM", 2)
    of = Masked(known=KNOWN)
    objective = Distill(of=of, teacher="unused")
    batch = masked_batch(objective)
    both = objective.with_teacher(student, teacher)
    sums, weights = objective.losses(both, batch), objective.weights(batch)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "output_hidden_states": True}
    ours, theirs = student(**inputs), teacher(**inputs)
    real = batch["attention_mask"].bool()
    soft = F.kl_div(
        F.log_softmax(ours.logits[real] / 2, -1), F.softmax(theirs.logits[real] / 2, -1), reduction="batchmean"
    )
    x, y = (out.hidden_states[-1][real] for out in (ours, theirs))
    cosine = F.cosine_embedding_loss(x, y, torch.ones(len(x)))
    close(sums["soft"] / weights["soft"], 5 * 4 * soft, 1e-5)
    close(sums["cosine"] / weights["cosine"], cosine, 1e-5)
    close(sums["hard"] / weights["hard"], 2 * of.losses(student, batch)["loss"] / of.weights(batch)["loss"], 1e-5)
    assert weights == {"soft": 41, "cosine": 41, "hard": 6}
    sum(sums.values()).backward()
    assert all(p.grad is None for p in teacher.parameters()) and all(p.grad is not None for p in student.parameters())


def test_no_loss_where_student_and_teacher_are_one() -> None:
    teacher = built("bert", "BertForMaskedLM")
    objective = Distill(of=Masked(known=KNOWN), teacher="unused", hard=0.0)
    sums = objective.losses(objective.with_teacher(teacher, teacher), masked_batch(objective))
    assert set(sums) == {"soft", "cosine"} and all(abs(float(v.detach())) < 1e-3 for v in sums.values())


@pytest.mark.parametrize("kind", ["next", "translate", "classify", "tag"])
def test_distillation_of_other_tasks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyformer.objectives import distill

    monkeypatch.setattr(distill, "rows_of_chunk", lambda device, V: 7)  # the chunk size must not matter
    names = {"id2label": {i: str(i) for i in range(3)}, "label2id": {str(i): i for i in range(3)}}
    of, architecture, family = {
        "next": (NextToken(), "GPT2LMHeadModel", "gpt2"),
        "translate": (Translate(), "T5ForConditionalGeneration", "t5"),
        "classify": (Classify(labels=("a", "b", "c")), "BertForSequenceClassification", "bert"),
        "tag": (Tag(labels=("a", "b", "c")), "BertForTokenClassification", "bert"),
    }[kind]
    more = names if kind in ("classify", "tag") else {}
    student, teacher = built(family, architecture, 1, **more), built(family, architecture, 2, **more)
    objective = Distill(of=of, teacher="unused", temperature=3.0, soft=1.0, hard=0.5, cosine=0.0)
    labels = [np.asarray(1), np.asarray(2)]
    if kind in ("translate", "tag"):
        labels = [ROWS[1] % 3, ROWS[0][: len(ROWS[1])] % 3] if kind == "tag" else [ROWS[0][:9], ROWS[1][:5]]
    ids = [ROWS[1], ROWS[0][: len(ROWS[1]) - (kind != "tag")]]  # equal lengths if each token has a label
    name = "label" if kind == "classify" else "labels"
    batch = objective.collate([{"input_ids": i, name: np.asarray(y)} for i, y in zip(ids, labels)], 0)
    sums, weights = objective.losses(objective.with_teacher(student, teacher), batch), objective.weights(batch)
    inputs = {n: v for n, v in batch.items() if n in ("input_ids", "attention_mask", "labels")}
    inputs = inputs if kind == "translate" else {n: v for n, v in inputs.items() if n != "labels"}
    ours, theirs = student(**inputs).logits, teacher(**inputs).logits
    apart = F.kl_div(F.log_softmax(ours / 3, -1), F.softmax(theirs / 3, -1), reduction="none").sum(-1) * 9
    if kind == "translate":
        apart = apart[batch["labels"] != -100]
    elif kind == "next":
        apart = apart[batch["attention_mask"].bool()]
    close(sums["soft"], apart.sum(), 1e-5)
    assert weights["soft"] == apart.numel()
    close(sums["hard"], 0.5 * of.losses(student, batch)["loss"], 1e-5)


def test_the_teacher_goes_along_unseen(tmp_path: Path) -> None:
    af.save(built("bert", "BertForMaskedLM", 2), tmp_path)
    objective = Distill(of=Masked(known=KNOWN), teacher=str(tmp_path))
    both: Any = objective.module(built("bert", "BertForMaskedLM", 1))
    assert not any(name.startswith("other") for name in both.state_dict()) and len(list(both.parameters())) > 0
    both.train().double()
    assert both.frozen.dtype == torch.float64 and not both.frozen.training
    assert not any(parameter.requires_grad for parameter in both.frozen.parameters())
    assert set(objective.losses(both, masked_batch(objective))) == {"soft", "cosine", "hard"}


def test_a_student_starts_with_every_second_layer(tmp_path: Path) -> None:
    """As published: by transformers' names, layer j of DistilBERT is layer 2 j of BERT; all other tensors are equal."""
    import transformers

    teacher = built("bert", "BertForMaskedLM", 2, num_hidden_layers=4)
    af.save(teacher, tmp_path / "teacher", format="hf")
    student = small_student()
    objective = Distill(of=Masked(known=KNOWN), teacher=str(tmp_path / "teacher"), layers=(0, 2))
    objective.initialize(student)
    af.save(student, tmp_path / "student", format="hf")
    ours = transformers.DistilBertForMaskedLM.from_pretrained(tmp_path / "student").state_dict()
    theirs = transformers.BertForMaskedLM.from_pretrained(tmp_path / "teacher").state_dict()
    names = {
        "distilbert.embeddings.position_embeddings.weight": "bert.embeddings.position_embeddings.weight",
        "distilbert.embeddings.word_embeddings.weight": "bert.embeddings.word_embeddings.weight",
        "distilbert.embeddings.LayerNorm.bias": "bert.embeddings.LayerNorm.bias",
        "vocab_transform.weight": "cls.predictions.transform.dense.weight",
        "vocab_layer_norm.weight": "cls.predictions.transform.LayerNorm.weight",
        "vocab_projector.bias": "cls.predictions.bias",
    }
    for j, i in enumerate(objective.layers):
        mine, its = f"distilbert.transformer.layer.{j}", f"bert.encoder.layer.{i}"
        names |= {
            f"{mine}.attention.q_lin.weight": f"{its}.attention.self.query.weight",
            f"{mine}.attention.out_lin.bias": f"{its}.attention.output.dense.bias",
            f"{mine}.ffn.lin1.weight": f"{its}.intermediate.dense.weight",
            f"{mine}.ffn.lin2.weight": f"{its}.output.dense.weight",
            f"{mine}.sa_layer_norm.weight": f"{its}.attention.output.LayerNorm.weight",
            f"{mine}.output_layer_norm.bias": f"{its}.output.LayerNorm.bias",
        }
    assert [name for name in names if not torch.equal(ours[name], theirs[names[name]])] == []


def test_a_student_with_all_layers_is_its_teacher(tmp_path: Path) -> None:
    """A student with every layer and no segments equals the teacher; a PretrainingHead contains the language head."""
    teacher = built("bert", "BertForPreTraining", 2)
    with torch.no_grad():
        teacher.embedding.segments.weight.zero_()
    af.save(teacher, tmp_path)
    student = small_student()
    objective = Distill(of=Masked(known=KNOWN), teacher=str(tmp_path), layers=(0, 1), hard=0.0)
    before = objective.losses(objective.module(student), masked_batch(objective))
    objective.initialize(student)
    after = objective.losses(objective.module(student), masked_batch(objective))
    assert before["soft"].item() > 1 and abs(after["soft"].item()) < 1e-3 and abs(after["cosine"].item()) < 1e-3


def test_layers_that_no_student_can_have(tmp_path: Path) -> None:
    af.save(built("bert", "BertForMaskedLM"), tmp_path)
    student = small_student()
    for layers, line in (
        ((0, 2), "no layer 2; its last is 1"),
        ((1,), "1 layers of the teacher, but the student has 2"),
    ):
        with pytest.raises(ValueError, match=line):
            Distill(of=Masked(), teacher=str(tmp_path), layers=layers).initialize(student)
    wide = small_student(hidden_dim=48)
    with pytest.raises(ValueError, match=r"feedforward.op.up.weight \(48, 24\) cannot come from the teacher"):
        Distill(of=Masked(), teacher=str(tmp_path), layers=(0, 1)).initialize(wide)


def test_distillation_mistakes() -> None:
    student = built("bert", "BertForMaskedLM")
    wide = built("bert", "BertForMaskedLM", hidden_size=48)
    with pytest.raises(ValueError, match="cosine .* 24 and 48"):
        Distill(of=Masked(), teacher="x").with_teacher(student, wide)
    Distill(of=Masked(), teacher="x", cosine=0.0).with_teacher(student, wide)
    with pytest.raises(ValueError, match="has 50 outputs and the teacher 60"):
        Distill(of=Masked(), teacher="x").with_teacher(student, built("bert", "BertForMaskedLM", vocab_size=60))
    for task, outputs in ((Classify(), "a number"), (MultiLabel(labels=("a", "b")), "independent labels")):
        with pytest.raises(ValueError, match=f"Distill.soft: the outputs of {type(task).__name__} are {outputs}"):
            Distill(of=task, teacher="x")
        assert Distill(of=task, teacher="x", soft=0.0).hard == 2.0
    with pytest.raises(ValueError, match="all 0"):
        Distill(of=Masked(), teacher="x", soft=0.0, hard=0.0, cosine=0.0)


# -- the auxiliary language model -------------------------------------------------------------------------------------


def test_auxiliary_loss_by_hand() -> None:
    """L2 + lambda L1: the classifier's mean loss, and half of the next-token mean loss with the tied table."""
    names = {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}, "pad_token_id": 0}
    model = built("gpt2", "GPT2ForSequenceClassification", **names)
    language = built("gpt2", "GPT2LMHeadModel")
    language.load_state_dict({n: t for n, t in model.state_dict().items() if "head" not in n}, strict=False)
    language.tie()
    objective = Auxiliary(of=Classify(labels=("a", "b")))
    records = [{"input_ids": r, "label": np.asarray(i)} for i, r in enumerate(ROWS)]
    batch = objective.collate(records, 0)
    sums, weights = objective.losses(objective.module(model), batch), objective.weights(batch)
    assert weights == {"loss": 2, "language": 26 + 13}
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    close(sums["loss"] / 2, model(**inputs, labels=batch["labels"]).loss, 1e-5)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    close(sums["language"] / 39, 0.5 * language(**inputs, labels=labels).loss, 1e-5)
    with pytest.raises(ValueError, match="reads left to right"):
        objective.module(model_of("bert"))


# -- both -------------------------------------------------------------------------------------------------------------


def test_the_trained_model_is_that_of_the_task(tmp_path: Path) -> None:
    """The head has the kind of labels of the wrapped objective, and its processor is saved with the model."""
    spec = families.find("gpt2").read({**CONFIGS["gpt2"], "architectures": ["GPT2ForSequenceClassification"]})
    for task in (MultiLabel(labels=("a", "b")), Classify()):
        model = af.override(spec, {"head.num_labels": len(task.labels) or 1})
        data, batch = Data(train=CSV(path="x.csv")), BatchSize(examples=1)
        run = Run(name="x", model=model, data=data, objective=Auxiliary(of=task), batch=batch, steps=1)
        trained = make_model(run, None)
        assert trained.head.problem == trained.spec.head.problem == task.problem
    objective = Distill(of=Transcribe(form="mel"), teacher="x")
    assert objective.write_settings(tmp_path) == tmp_path
    assert AudioProcessor.load(tmp_path) == objective.of.processor


# -- replaced tokens --------------------------------------------------------------------------------------------------


def discriminator() -> Any:
    return built("bert", "BertForTokenClassification", 5, id2label={0: "x"}, label2id={"x": 0})


def replaced(**more: Any) -> ReplacedTokens:
    spec = families.find("bert").read({**CONFIGS["bert"], "num_hidden_layers": 1})
    return ReplacedTokens(generator=spec, known=KNOWN, **more)


def test_replaced_token_terms_by_hand() -> None:
    objective, model, generator = replaced(share=()), discriminator(), built("bert", "BertForMaskedLM", 6)
    batch = masked_batch(objective)
    both = objective.with_generator(model, generator)
    sums, weights = objective.losses(both, batch), objective.weights(batch)
    assert weights == {"generator": 6, "discriminator": 41} and objective.weight == 50
    real, asked = batch["attention_mask"].bool(), batch["labels"] != -100
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    scores = generator(**inputs).logits.flatten(0, 1)[batch["places"][asked]]
    close(sums["generator"], F.cross_entropy(scores, batch["labels"][asked], reduction="sum"), 1e-5)
    # the sample: the token whose part of the unit interval contains the uniform number
    ids = batch["input_ids"].clone().flatten()
    wrong = torch.zeros_like(ids, dtype=torch.bool)
    for place, label, dice, row in zip(batch["places"], batch["labels"], batch["uniforms"], scores.softmax(-1)):
        token, share = 0, float(row[0])
        while share <= float(dice):
            token += 1
            share += float(row[token])
        ids[place], wrong[place] = token, token != int(label)
    ids, wrong = ids.view_as(real), wrong.view_as(real)
    assert wrong.any() and not wrong[~real].any()
    logits = model(input_ids=ids, attention_mask=batch["attention_mask"]).logits[..., 0]
    right = F.binary_cross_entropy_with_logits(logits[real], wrong[real].float(), reduction="sum")
    close(sums["discriminator"], 50 * right, 1e-5)


def test_a_discriminator_alone_has_no_loss() -> None:
    """The generator is not saved in the folder, and a new one would give a different loss."""
    with pytest.raises(ValueError, match=r"^ReplacedTokens: its loss needs weights that are not in the model's folder"):
        loss_module(discriminator(), replaced())
    model = built("bert", "BertForMaskedLM")
    assert loss_module(model, Masked(known=KNOWN)) is model


def test_a_right_guess_is_no_replacement() -> None:
    """If the generator always samples the original, no token is replaced."""
    objective, batch = replaced(share=()), masked_batch(replaced())

    class Sure(torch.nn.Module):
        part = None

        def scores(self, x: Tensor) -> Tensor:
            return 100 * F.one_hot(batch["labels"].clamp(min=0), 50).float()

    generator = built("bert", "BertForMaskedLM")
    from anyformer.objectives import replaced as module
    from anyformer.objectives.heads import forward_to_head

    states = forward_to_head(generator, batch)
    old, module.language_head = module.language_head, lambda model: Sure()  # type: ignore[assignment]
    try:
        ids, wrong = objective.fill_in(generator, batch, states)
    finally:
        module.language_head = old
    assert not wrong.any() and ids[0, : len(ROWS[0])].tolist() == ROWS[0].tolist()
    assert ids[1, : len(ROWS[1])].tolist() == ROWS[1].tolist()


def test_samples_follow_the_generator() -> None:
    objective = replaced(share=())
    random, found = np.random.default_rng(0), np.zeros(50)
    generator = built("bert", "BertForMaskedLM", 6)
    from anyformer.objectives.heads import forward_to_head

    record = objective.vary({"input_ids": ROWS[0]}, np.random.default_rng(1))
    batch = objective.collate([record], 0)
    states = forward_to_head(generator, batch)
    place = int(batch["places"][0])
    for _ in range(3000):
        batch["uniforms"] = torch.from_numpy(random.random(len(batch["uniforms"]))).float()
        found[int(objective.fill_in(generator, batch, states)[0].flatten()[place])] += 1
    chances = generator(input_ids=batch["input_ids"]).logits[0, place].softmax(-1).detach().numpy()
    assert np.abs(found / 3000 - chances).max() < 0.03


def test_published_masking_and_shared_tables() -> None:
    objective, model = replaced(), discriminator()
    both: Any = objective.module(model)
    assert both.generator.embedding.tokens.weight is model.embedding.tokens.weight
    assert both.generator.head.out.weight is model.embedding.tokens.weight  # tied weights stay tied
    assert both.generator.embedding.position.weight is model.embedding.position.weight
    random = np.random.default_rng(0)
    row = np.array([2, *(10 + np.arange(398) % 40), 3], np.int32)
    seen = [objective.vary({"input_ids": row}, random) for _ in range(99)]
    hidden = np.concatenate([one["input_ids"][one["places"]] for one in seen])
    assert abs((hidden == 4).mean() - 0.85) < 0.015
    sum(objective.losses(both, masked_batch(objective)).values()).backward()
    assert all(p.grad is not None for p in both.parameters() if p.requires_grad)
    with pytest.raises(ValueError, match="ReplacedTokens .* one score per token"):
        objective.module(model_of("gpt2"))


def test_losses_learn_together() -> None:
    """The losses of both models fall on one batch (T5)."""
    objective, model = replaced(weight=5.0), discriminator()
    both: Any = objective.module(model).train()
    batch = masked_batch(objective)
    weights = objective.weights(batch)
    optimizer = torch.optim.AdamW(both.parameters(), 3e-3)
    history = []
    torch.manual_seed(0)
    for _ in range(60):
        terms = {name: value / weights[name] for name, value in objective.losses(both, batch).items()}
        history.append({name: float(value.detach()) for name, value in terms.items()})
        sum(terms.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert history[-1]["generator"] < 0.3 * history[0]["generator"]
    assert history[-1]["discriminator"] < 0.5 * history[0]["discriminator"]
    assert isinstance(model(input_ids=batch["input_ids"]), Output)
