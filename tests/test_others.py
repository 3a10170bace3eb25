"""Models work with other libraries: torch.export, DDP, accelerate, Hugging Face's Trainer, PEFT (for its files, see
tests/transforms/test_adapters.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import anyformer as af
from anyformer import families
from anyformer.models import Output

TINY = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 40, "n_positions": 16, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
BERT = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 40,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # fmt: skip
IDS = torch.arange(24).view(2, 12)


def gpt2(seed: int = 0) -> Any:
    return af.build(families.find("gpt2").read(TINY), seed=seed)


def bert(architecture: str = "BertModel", **changes: Any) -> Any:
    return af.build(families.find("bert").read({**BERT, "architectures": [architecture], **changes}))


def test_an_output_is_a_dict_and_a_tree() -> None:
    out = gpt2()(input_ids=IDS, labels=IDS, output_hidden_states=True)
    assert isinstance(out, dict) and [*out] == ["loss", "logits", "hidden_states"]
    assert out[0] is out.loss is out["loss"] and out[1:2] == (out.logits,) and out.attentions is None
    leaves, tree = pytree.tree_flatten(out)
    assert len(leaves) == 2 + 3 and pytree.tree_unflatten(leaves, tree).hidden_states[1] is out.hidden_states[1]
    doubled = pytree.tree_map(lambda tensor: tensor * 2, out)
    assert isinstance(doubled, Output) and torch.equal(doubled.logits, out.logits * 2)
    assert {**out}.keys() == out.keys() == dict(out).keys()
    with pytest.raises(KeyError):
        out["attentions"]


@torch.no_grad()
def test_torch_export() -> None:
    """For any number of texts and tokens, without a cache in the output."""
    model, mask = gpt2().eval(), torch.ones_like(IDS)
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    inputs = {"input_ids": IDS, "attention_mask": mask}
    program = torch.export.export(model, (), inputs, dynamic_shapes={name: free for name in inputs})
    other = {"input_ids": IDS.flip(1).repeat(2, 1)[:3, :9], "attention_mask": mask.repeat(2, 1)[:3, :9]}
    other["attention_mask"] = other["attention_mask"].tril(6)  # pads after the first text
    found, wanted = program.module()(**other), model(**other)
    assert isinstance(found, Output) and [*found] == ["logits"]
    assert torch.allclose(found.logits, wanted.logits, atol=1e-6)


@pytest.mark.slow
def test_onnx(tmp_path: Path) -> None:
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    runtime = pytest.importorskip("onnxruntime")
    model, inputs = gpt2().eval(), {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    names = {"input_names": list(inputs), "output_names": ["logits"]}
    program = torch.onnx.export(model, (), kwargs=inputs, dynamic_shapes={name: free for name in inputs}, **names)
    program.save(str(tmp_path / "model.onnx"))
    other = {"input_ids": IDS[:1, :5], "attention_mask": torch.ones(1, 5, dtype=torch.long)}
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    (found,) = session.run(["logits"], {name: tensor.numpy() for name, tensor in other.items()})
    assert torch.allclose(torch.from_numpy(found), model(**other).logits, atol=1e-6)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A process group of one process."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_ddp_finds_the_parameters_that_a_step_used(process_group: None) -> None:
    model = bert()  # its pooler does not affect the loss below
    wrapped = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    for _ in range(2):
        out = wrapped(input_ids=IDS)
        assert isinstance(out, Output)
        out.last_hidden_state.square().mean().backward()
    used = {name: parameter.grad is not None for name, parameter in model.named_parameters()}
    assert any(used.values()) and not all(used.values())
    assert all(grad != name.startswith("head.") for name, grad in used.items())


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    ours, plain = gpt2(), gpt2()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    rows = [{"input_ids": row, "labels": row} for row in IDS.repeat(2, 1)]
    model, optimizer, loader = accelerator.prepare(
        ours, torch.optim.SGD(ours.parameters(), lr=0.1), torch.utils.data.DataLoader(rows, batch_size=2)
    )
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    step = torch.optim.SGD(plain.parameters(), lr=0.1)
    plain(input_ids=IDS, labels=IDS).loss.backward()
    step.step()
    for (name, one), two in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6), name


class Rows(torch.utils.data.Dataset):
    """Rows with different numbers of labels; "note" is a column that no model uses."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {name: values[i] for name, values in self.columns.items()}


def trainer(model: Any, folder: Path, rows: Rows, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    usual = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    usual |= {"use_cpu": True, "max_steps": 1, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    metrics = options.pop("compute_metrics", None)
    arguments = transformers.TrainingArguments(str(folder), **{**usual, **options})
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, eval_dataset=rows, compute_metrics=metrics
    )


def test_hugging_face_trainer(tmp_path: Path) -> None:
    """A step over two micro-batches with different numbers of labels equals a step over both: the loss is divided by
    Trainer's count. Columns that the model does not use are dropped, and evaluation returns a loss."""
    labels = IDS.clone()
    labels[0, :9] = -100
    ours, plain = gpt2(), gpt2()
    rows = Rows(input_ids=IDS.tolist(), labels=labels.tolist(), note=["a", "b"])
    driven = trainer(ours, tmp_path, rows, per_device_train_batch_size=1, gradient_accumulation_steps=2)
    assert driven.train().training_loss == pytest.approx(plain(input_ids=IDS, labels=labels).loss.item(), abs=1e-5)
    plain(input_ids=IDS, labels=labels).loss.backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    for (name, one), two in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6), name
    wanted = plain.eval()(input_ids=IDS, labels=labels).loss.item()
    assert driven.evaluate(rows)["eval_loss"] == pytest.approx(wanted, abs=1e-5)


def test_hugging_face_trainer_with_a_classifier(tmp_path: Path) -> None:
    model = bert("BertForSequenceClassification", num_labels=3)
    assert not model.accepts_loss_kwargs
    rows = Rows(input_ids=IDS.tolist(), token_type_ids=torch.zeros_like(IDS).tolist(), labels=[0, 2])
    driven = trainer(model, tmp_path, rows)
    driven.train()
    found = driven.predict(rows)
    wanted = model.eval()(input_ids=IDS)
    assert torch.allclose(torch.tensor(found.predictions), wanted.logits.detach(), atol=1e-6)
    with pytest.raises(ValueError, match="num_items_in_batch.*language models"):
        model(input_ids=IDS, labels=torch.tensor([0, 1]), num_items_in_batch=3)


ROWS = Rows(input_ids=IDS.tolist(), labels=IDS.tolist())
LABELLED = Rows(input_ids=IDS.tolist(), labels=[0, 2])


def classifier() -> Any:
    return bert("BertForSequenceClassification", num_labels=3)


@pytest.mark.parametrize(("make", "rows"), [(gpt2, ROWS), (classifier, LABELLED)])
def test_hugging_face_trainer_saves_and_resumes(make: Any, rows: Rows, tmp_path: Path) -> None:
    """Every step and the final model are saved (with the tied weights of GPT-2), the best step is loaded at the end,
    and a run that stops after one step continues as if it had not stopped."""
    options = {
        "save_strategy": "steps",
        "save_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "optim": "adamw_torch",
    }
    driven = trainer(make(), tmp_path / "two", rows, max_steps=2, load_best_model_at_end=True, **options)
    driven.train()
    driven.save_model()
    other = make()
    other.load_state_dict(safetensors.torch.load_file(tmp_path / "two" / "model.safetensors"))
    assert_equal(other, driven.model)

    trainer(make(), tmp_path / "one", rows, max_steps=1, **options).train()
    resumed = trainer(make(), tmp_path / "one", rows, max_steps=2, **options)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 2
    assert_equal(resumed.model, driven.model)


def assert_equal(one: Any, two: Any) -> None:
    for name, parameter in one.named_parameters(remove_duplicate=False):
        assert torch.equal(parameter, two.get_parameter(name)), name


@pytest.mark.parametrize(("make", "rows"), [(gpt2, ROWS), (classifier, LABELLED)])
def test_hugging_face_trainer_scores_and_predicts(make: Any, rows: Rows, tmp_path: Path) -> None:
    """Predictions do not contain a decoder's cache, with or without labels; a caller can still request it."""
    model, seen = make(), []

    def accuracy(found: Any) -> dict[str, float]:
        seen.append(found)
        return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}

    driven = trainer(model, tmp_path, rows, compute_metrics=accuracy)
    model.eval()
    with torch.no_grad():
        wanted = model(input_ids=IDS).logits
    assert driven.evaluate()["eval_accuracy"] == float((wanted.argmax(-1) == seen[0].label_ids).double().mean())
    for columns in (rows.columns, {**rows.columns, "labels": [None, None]}):
        found = driven.predict(Rows(**columns)).predictions
        assert torch.allclose(torch.tensor(found), wanted, atol=1e-6)
    if make is gpt2:
        assert model(input_ids=IDS, use_cache=True).past_key_values.length == IDS.shape[1]


@pytest.mark.parametrize(("make", "rows"), [(gpt2, ROWS), (classifier, LABELLED)])
def test_hugging_face_trainer_recomputes(make: Any, rows: Rows, tmp_path: Path) -> None:
    """Layers run twice per step, even if training starts several times, and the weights are the same."""
    plain, model = make(), make()
    trainer(plain, tmp_path, rows).train()
    trainer(plain, tmp_path, rows).train()
    stack, calls = model.decoder if make is gpt2 else model.encoder, []
    stack.layers[0].attention.register_forward_pre_hook(lambda *_: calls.append(None))
    for runs in (2, 4):
        trainer(model, tmp_path, rows, gradient_checkpointing=True).train()
        assert len(calls) == runs and model.is_gradient_checkpointing
    for (name, one), two in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6), name
    model.gradient_checkpointing_disable()
    model.train()(**{name: torch.tensor(values) for name, values in rows.columns.items()}).loss.backward()
    assert len(calls) == 5 and not model.is_gradient_checkpointing
    with pytest.raises(ValueError, match="checkpointing.*use_reentrant=True"):
        model.gradient_checkpointing_enable({"use_reentrant": True})


def test_tied_weights_are_once_in_a_state_dict() -> None:
    model, other = gpt2(), gpt2(seed=1)
    state = model.state_dict()
    assert "head.out.weight" not in state and state.keys() < model.state_dict(keep_vars=True).keys()
    assert not other.load_state_dict(state).missing_keys
    assert_equal(other, model)
    assert other.head.out.weight is other.embedding.tokens.weight


def test_inputs_that_are_not_named_in_the_signature_are_still_told_apart() -> None:
    model = gpt2()
    with pytest.raises(TypeError, match="no input 'pixel_values'"):
        model(pixel_values=torch.zeros(1, 3, 2, 2))
    assert torch.equal(model(IDS).logits, model(input_ids=IDS).logits)
    assert isinstance(model(IDS, labels=IDS, num_items_in_batch=torch.tensor(22)).loss, Tensor)


# -- PEFT -------------------------------------------------------------------------------------------------------------


def test_peft_puts_adapters_on_a_model_and_takes_ours(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    af.save(gpt2(), tmp_path / "base")
    model = peft.get_peft_model(af.load(tmp_path / "base"), peft.LoraConfig(r=2, target_modules=["q", "up"]))
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.1)
    losses = []
    for _ in range(20):
        loss = model(input_ids=IDS, labels=IDS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05

    base = gpt2()
    af.save(base, tmp_path / "hf", format="hf")
    ours = af.lora.apply(af.load(tmp_path / "hf"), af.lora.LoRA(rank=2))
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.1 if parameter.requires_grad else 0.0)
    af.save(ours, tmp_path / "adapter", format="peft")
    transformers = pytest.importorskip("transformers")
    theirs = peft.PeftModel.from_pretrained(
        transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf"), tmp_path / "adapter"
    ).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        wanted = theirs(input_ids=IDS).logits
        assert not torch.allclose(wanted, base.eval()(input_ids=IDS).logits, atol=1e-3)
        for model in (ours.eval(), af.load(tmp_path / "adapter"), af.load(tmp_path / "theirs", base=tmp_path / "hf")):
            assert torch.allclose(model(input_ids=IDS).logits, wanted, atol=1e-5)
