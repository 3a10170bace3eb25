"""lm-evaluation-harness gives the same results with our adapter as with its `hf` model on the exported folder."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, processors

import anyformer as af
from anyformer import families
from vocabularies import CORPUS, TEXTS, byte_trainer, gpt2, write
from writers import sharpened

pytest.importorskip("transformers")
pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install 'anyformer[lm_eval]'")
pytest.importorskip("accelerate", reason="lm_eval's own hf model, to compare with, needs accelerate")

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from anyformer.evaluate import harness
from anyformer.evaluate.harness import AnyformerLM

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 2, "n_embd": 24, "n_head": 3, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 0,
             "architectures": ["GPT2LMHeadModel"]},
    "llama": {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
              "intermediate_size": 40, "max_position_embeddings": 40, "bos_token_id": 0, "eos_token_id": 1,
              "architectures": ["LlamaForCausalLM"]},
    "t5": {"num_layers": 2, "d_model": 24, "d_kv": 8, "num_heads": 3, "d_ff": 40, "decoder_start_token_id": 2,
           "n_positions": 30, "pad_token_id": 2, "eos_token_id": 1, "feed_forward_proj": "gated-gelu",
           "architectures": ["T5ForConditionalGeneration"]},
}  # fmt: skip


def whole(folder: Path, before: str, after: str) -> None:
    """Return a byte-level tokenizer.json with special tokens around a text."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(CORPUS, byte_trainer(350, ["<s>", "</s>", "<pad>"]))
    core.post_processor = processors.TemplateProcessing(
        single=f"{before}$A{after}", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    core.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"} if before else {"eos_token": "</s>"}
    write(
        folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", **special}
    )


@pytest.fixture(scope="module", params=CONFIGS)
def folders(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """(family, our folder, the exported folder)"""
    name, folder = request.param, tmp_path_factory.mktemp("harness")
    if name == "gpt2":
        gpt2(folder)
    else:
        whole(folder, "<s> " if name == "llama" else "", " </s>" if name == "t5" else "")
    vocab = {"vocab_size": 400 if name == "gpt2" else 350}
    model: Any = af.build(families.find(name).read({**CONFIGS[name], **vocab}), seed=0).eval()
    sharpened(model)
    model.folder = folder
    af.save(model, folder / "ours")
    af.save(model, folder / "theirs", format="hf")
    return name, folder / "ours", folder / "theirs"


@pytest.fixture(scope="module")
def both(folders: tuple[str, Path, Path]) -> tuple[str, AnyformerLM, HFLM]:
    name, ours, theirs = folders
    return name, AnyformerLM(path=str(ours), batch_size=3), HFLM(str(theirs), device="cpu", batch_size=3)


def asked(kind: str, *arguments: Any) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=one, idx=i) for i, one in enumerate(arguments)]


LONG = " ".join(TEXTS[-1].split()[:60])


def test_what_they_know_of_a_model(both: Any) -> None:
    _, ours, theirs = both
    for name in ("max_length", "backend", "prefix_token_id", "eot_token_id", "max_gen_toks", "batch_size"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for text in (*TEXTS, theirs.tok_decode([theirs.prefix_token_id], skip_special_tokens=False) + "The fox"):
        for special in (None, True, False):
            assert ours.tok_encode(text, add_special_tokens=special) == theirs.tok_encode(text, special), text


def test_likelihoods_are_theirs(both: Any) -> None:
    """Cases: spaces at the end of a context, no context, equal contexts with one token each, too long contexts."""
    name, ours, theirs = both
    pairs = [("The fox ", "says hello"), ("The fox", " a"), ("The fox", " b"), ("", "dog."), (LONG, " dog and fox"),
             ("naïve", " 🦙"), ("The quick brown", " fox jumps"), ("x", "y")]  # fmt: skip
    a, b = ours.loglikelihood(asked("loglikelihood", *pairs)), theirs.loglikelihood(asked("loglikelihood", *pairs))
    assert [one[1] for one in a] == [one[1] for one in b]
    assert a == [pytest.approx(one, abs=1e-4, rel=1e-5) for one in b]
    alone = AnyformerLM(path=ours.path, batch_size="auto").loglikelihood(asked("loglikelihood", *pairs))
    assert a == [pytest.approx(one, abs=1e-4, rel=1e-5) for one in alone]
    given = ours.tok_encode("The fox")
    best = af.generate(ours.model, torch.tensor([given]), max_new_tokens=3, min_new_tokens=3, eos_token_id=3)[
        0
    ].tolist()[-3:]
    a = ours._loglikelihood_tokens([(None, given, best), (None, given, [*best[:2], best[2] ^ 1])])
    assert [one[1] for one in a] == [True, False]


def test_rolling_likelihoods_are_theirs(both: Any) -> None:
    _, ours, theirs = both
    texts = [(text,) for text in ("The fox says hello.", LONG, "a", LONG * 2)]
    a = ours.loglikelihood_rolling(asked("loglikelihood_rolling", *texts))
    b = theirs.loglikelihood_rolling(asked("loglikelihood_rolling", *texts))
    assert a == pytest.approx(b, rel=1e-5)


def test_texts_are_theirs(both: Any) -> None:
    """Cases: several stop strings, prompts of unequal length, a too long prompt, two groups of options."""
    name, ours, theirs = both
    first = {"until": ["e", "\n\n"], "max_gen_toks": 9}
    second = {"until": ["zebra"], "max_gen_toks": 4, "do_sample": False, "temperature": 0.0}
    requests = [("The fox", first), ("The quick brown fox jumps", first), (LONG, first), ("dog", second),
                ("a", {"until": [], "max_gen_toks": 4})]  # fmt: skip
    a, b = (
        ours.generate_until(asked("generate_until", *requests)),
        theirs.generate_until(asked("generate_until", *requests)),
    )
    assert len(set(a)) > 2
    for mine, other in zip(a, b, strict=True):  # for an encoder-decoder, `hf` adds the prompt's length to the limit
        assert mine == other if name != "t5" else other.startswith(mine.rstrip("\ufffd"))
    assert requests[0][1] == {"until": ["e", "\n\n"], "max_gen_toks": 9}


@pytest.fixture(autouse=True)
def without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness lists the machine's packages and drivers in its results, in other processes."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)


TASK = {"dataset_path": "json", "test_split": "test", "metadata": {"version": 1.0}}
TASKS: dict[str, dict[str, Any]] = {
    "tiny_choice": {"output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}",
                    "doc_to_target": "{{answer}}", "num_fewshot": 1, "fewshot_split": "test",
                    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]},
    "tiny_text": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{question}}",
                  "metric_list": [{"metric": "bits_per_byte"}]},
    "tiny_write": {"output_type": "generate_until", "doc_to_text": "{{question}}",
                   "doc_to_target": "{{choices[answer]}}", "metric_list": [{"metric": "exact_match"}],
                   "generation_kwargs": {"until": ["fox"], "max_gen_toks": 5}},
}  # fmt: skip


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    docs = [
        {"question": f"{text} The", "choices": [" fox", " lazy dog", " café"][: 2 + i % 2], "answer": i % 2}
        for i, text in enumerate(("It's a naïve", "Die Füchse", "transformers", "42 dogs", "The quick brown"))
    ]
    (folder / "test.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs), encoding="utf-8")
    data = {"data_files": {"test": str(folder / "test.jsonl")}, "cache_dir": str(folder / "cache")}
    for name, task in TASKS.items():
        write(folder, f"{name}.yaml", {"task": name, **TASK, "dataset_kwargs": data, **task})  # JSON is YAML
    return folder


def test_a_local_task_file_gives_the_same_results(folders: Any, tasks: Path) -> None:
    name, ours, theirs = folders
    if name == "llama":
        pytest.skip("one decoder is enough")
    manager = TaskManager(include_path=str(tasks), include_defaults=False)

    def run(model: str, **arguments: Any) -> Any:
        return lm_eval.simple_evaluate(
            model=model, model_args=arguments, tasks=list(TASKS), task_manager=manager, batch_size=2, device="cpu",
            log_samples=True, bootstrap_iters=0,
        )  # fmt: skip

    a, b = run("anyformer", path=str(ours)), run("hf", pretrained=str(theirs))
    for task in TASKS:
        for mine, other in zip(a["samples"][task], b["samples"][task], strict=True):
            assert mine["arguments"] == other["arguments"]
            if task == "tiny_write":
                assert other["resps"][0][0].startswith(mine["resps"][0][0].rstrip("\ufffd"))
                continue
            for (x,), (y,) in zip(mine["resps"], other["resps"], strict=True):
                x, y = (x, y) if task == "tiny_choice" else ((x, True), (y, True))
                assert x[0] == pytest.approx(y[0], abs=1e-4, rel=1e-5) and x[1] == y[1]
        if task != "tiny_write":
            mine, other = ({k: v for k, v in r["results"][task].items() if "," in k} for r in (a, b))
            assert mine.keys() == other.keys() and len(mine) >= 2
            for key in mine:
                assert mine[key] == (
                    pytest.approx(other[key], rel=1e-5) if isinstance(other[key], float) else other[key]
                )
    assert a["config"]["model_num_parameters"] == b["config"]["model_num_parameters"]


def test_the_command(folders: Any, tasks: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    name, ours, _ = folders
    if name != "gpt2":
        pytest.skip("one family is enough")
    (found,) = (e for e in importlib.metadata.entry_points(group="lm_eval.models") if e.name == "anyformer")
    known = lm_eval.api.registry.Registry("model")
    known.register("anyformer", target=found)  # as releases after 0.4.13 do
    assert known.get("anyformer") is AnyformerLM is lm_eval.api.registry.get_model("anyformer")
    make: Any = TaskManager.__init__
    few = {"include_defaults": False}  # indexing the harness's thousands of tasks takes half a minute
    monkeypatch.setattr(TaskManager, "__init__", lambda self, *given, **more: make(self, *given, **more, **few))
    monkeypatch.setattr(sys, "argv", [
        "lm_eval", "--model", "anyformer", "--model_args", f"path={ours},dtype=float32", "--tasks", "tiny_choice",
        "--include_path", str(tasks), "--output_path", str(tmp_path),
    ])  # fmt: skip
    harness.main()
    (file,) = tmp_path.rglob("results_*.json")
    assert "acc,none" in json.loads(file.read_text())["results"]["tiny_choice"]
    monkeypatch.setattr(sys, "argv", [argument.replace(str(ours), "/no/folder") for argument in sys.argv])
    with pytest.raises(SystemExit) as stopped:
        harness.main()
    message = capsys.readouterr().err.splitlines()[-1]
    assert stopped.value.code == 2 and message == "anyformer: /no/folder: no such folder"


def test_mistakes(folders: Any, both: Any, tmp_path: Path) -> None:
    name, ours, _ = folders
    with pytest.raises(ValueError, match="path=DIR"):
        AnyformerLM()
    with pytest.raises(ValueError, match="no argument 'pretrained'; "):
        AnyformerLM(path=str(ours), pretrained="x")
    with pytest.raises(ValueError, match="no argument 'dtipe'; did you mean 'dtype'"):
        AnyformerLM(path=str(ours), dtipe="x")
    with pytest.raises(ValueError, match="no option 'temprature'; did you mean 'temperature'"):
        both[1].generate_until(asked("generate_until", ("a", {"temprature": 1.0, "max_gen_toks": 4})))
    with pytest.raises(ValueError, match="continuation has .* tokens"):
        both[1].loglikelihood(asked("loglikelihood", ("a", LONG * 3)))
    if both[1].backend == "causal":
        with pytest.raises(ValueError, match="max_gen_toks is 400"):
            both[1].generate_until(asked("generate_until", ("a", {"max_gen_toks": 400})))
    sizes = {"vocab_size": 400, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
    model = af.build(families.find("bert").read({"architectures": ["BertForMaskedLM"], **sizes}), seed=0)
    model.folder = ours
    af.save(model, tmp_path / "bert")
    with pytest.raises(ValueError, match="BertForMaskedLM has no language-model head"):
        AnyformerLM(path=str(tmp_path / "bert"))
