"""Machines without one or all of the abilities; devices by name; training that ends by its deadline."""

from __future__ import annotations

import math
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import checkpoint, cli, families
from anyformer.cli import listing, quickstart
from anyformer.kernels import hardware
from anyformer.recipes.quickstart import sizes
from anyformer.train import deadline
from anyformer.train.optim import Cosine
from anyformer.train.trainer import StepResult
from anyformer.transforms.pack import pack
from anyformer.transforms.quantize import quantize
from tiny import inputs_of, model_of

EVERY = ",".join(hardware.ABILITIES)


@pytest.fixture(params=[*hardware.ABILITIES, EVERY], ids=[*hardware.ABILITIES, "every"])
def lacking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(hardware.HIDING, request.param)
    return request.param


def test_what_is_hidden_is_not_there(lacking: str) -> None:
    assert not any(hardware.has(name) for name in lacking.split(","))


def test_an_ability_is_found_by_trying_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch build lists an engine that does not support this CPU: the ability is missing."""
    monkeypatch.delenv(hardware.HIDING, raising=False)

    def unknown(*args: Any) -> Any:
        raise RuntimeError("unknown architecure")

    monkeypatch.setattr(torch, "_make_per_channel_quantized_tensor", unknown)
    hardware.int8.cache_clear()
    assert not hardware.has("int8")
    hardware.int8.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    hardware.compiler.cache_clear()
    assert not hardware.has("compiler")
    hardware.compiler.cache_clear()


def test_a_name_that_hides_nothing_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hardware.HIDING, "bf16, int")
    with pytest.raises(ValueError, match=r"ANYFORMER_WITHOUT: unknown ability 'int'; did you mean 'int8'\?"):
        hardware.has("bf16")


def test_models_do_the_same_without(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """int8 weights, packed weights and generation give the same results with and without an ability. Without 8-bit
    products, activations are not rounded to 8 bits, as with `exact`."""
    inputs = inputs_of("gpt2")

    def done(exact: bool) -> list[torch.Tensor]:
        with torch.no_grad():
            results = [
                quantize(model_of("gpt2"), exact=exact)(**inputs).logits,
                pack(model_of("gpt2"))(**inputs).logits,
            ]
        return [*results, af.generate(model_of("gpt2"), input_ids=inputs["input_ids"], max_new_tokens=4)]

    without = done(exact=False)
    monkeypatch.delenv(hardware.HIDING)
    for a, b in zip(without, done(exact="int8" in lacking), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_without_a_compiler_compiling_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hardware.HIDING, "compiler")
    with pytest.raises(ValueError, match=r"compile=True: there is no C\+\+ compiler here"):
        af.generate(model_of("gpt2"), input_ids=inputs_of("gpt2")["input_ids"], max_new_tokens=4, compile=True)


@pytest.mark.parametrize("text", ["--set compile=true", "--device cuda:99", "--device gpu"])
def test_train_says_what_is_not_here(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(hardware.HIDING, "compiler")
    assert cli.main(["train", "quickstart", "--out", str(tmp_path / "run"), *text.split()]) == 2
    out, err = capsys.readouterr()
    wanted = "no C++ compiler here" if "compile" in text else f"device '{text.split()[1]}' is not available"
    assert out == "" and wanted in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow  # without every ability: tests/cli/test_quickstart.py
@pytest.mark.parametrize("lacking", ["", *hardware.ABILITIES], indirect=True)
def test_the_quickstart_in_a_short_form(
    lacking: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    small, read = sizes()[0].run, quickstart.recipe
    monkeypatch.setattr(quickstart, "recipe", lambda name, *data: read(name, *data) if data else small)
    short = ["--set", "steps=2", "--set", "evaluate.batches=1", "--set", "evaluate.sample=null", "--dates-steps", "2"]
    quickstart.main(short)
    out, _ = capsys.readouterr()
    assert "step 2: loss" in out and (tmp_path / "runs" / "quickstart" / "report.html").is_file()


# -- devices


def test_devices_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hardware.device("cpu") == torch.device("cpu") == hardware.device(torch.device("cpu"))
    assert hardware.device("meta").type == "meta"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert hardware.device("auto") == hardware.device(None) == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert hardware.device("auto") == torch.device("cpu")
    for wrong in ("gpu", "cuda:99", "tpu"):
        for call in (hardware.device, lambda name: af.build(af.spec("gpt2"), device=name)):
            with pytest.raises(ValueError, match=f"device '{wrong}' is not available: .+; valid: auto, cpu"):
                call(wrong)


def test_python_takes_auto_too(tmp_path: Path) -> None:
    af.save(model_of("gpt2"), tmp_path)
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert af.load(tmp_path, device="auto").device.type == af.build(model_of("gpt2").spec, device="auto").device.type
    assert af.load(tmp_path, device="auto").device.type == expected and af.load(tmp_path).device.type == "cpu"
    with pytest.raises(ValueError, match="device 'gpu' is not available"):
        af.load(tmp_path, device="gpu")


@pytest.mark.parametrize("verb", ["generate", "run fill-mask", "train", "eval"])
def test_every_verb_has_the_same_flag(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*verb.split(), "--help"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "--device NAME auto (a GPU if there is one, else cpu), cpu, cuda, cuda:1, mps" in output


# -- deadlines


def simulated(
    monkeypatch: pytest.MonkeyPatch, seconds: Any, limit: float, evaluating: float = 0.0, **options: Any
) -> tuple[Any, Any]:
    """Simulate training with a Deadline if step n takes seconds(n). Return the end time and the schedule's factors."""
    clock = [1000.0]
    monkeypatch.setattr(deadline.time, "monotonic", lambda: clock[0])
    end = deadline.Deadline(1000.0 + limit, tail=5.0, **options)
    trainer: Any = SimpleNamespace(step=0, steps=10**6)
    end.on_start(trainer)
    factors = []
    while trainer.step < trainer.steps:
        factors.append(Cosine(warmup=5, floor=0.05).factor(trainer.step, trainer.steps))
        clock[0] += seconds(trainer.step)
        trainer.step += 1
        end.on_step(trainer, StepResult(trainer.step, 1.0, {}, 1.0, 1.0, 1, 1, seconds(trainer.step - 1)))
        if trainer.step % 50 == 0:
            clock[0] += evaluating
            end.on_evaluate(trainer, {})
    return clock[0] - 1000.0, factors


@pytest.mark.parametrize(
    "seconds", [lambda n: 1.0, lambda n: 30.0 if n == 0 else 0.5, lambda n: 0.2 if n < 100 else 2.0,
                lambda n: 2.0 if n < 30 else 0.2], ids=["even", "slow start", "slower", "faster"],
)  # fmt: skip
def test_training_ends_in_time_with_its_schedule(seconds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    took, factors = simulated(monkeypatch, seconds, limit=180.0, evaluating=3.0)
    assert 150 < took <= 180
    assert factors[-1] < 0.1 and max(factors[5:]) > 0.9 and len(factors) > 50


def test_a_deadline_asks_for_no_more_steps_and_forgets_those_that_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    took, factors = simulated(monkeypatch, lambda n: 60.0 if n < 2 else 0.5, limit=200.0, most=100, slow=2)
    assert took < 180 and len(factors) == 100 and max(factors) == 1 and factors[-1] < 0.1
    took, factors = simulated(monkeypatch, lambda n: 60.0 if n < 2 else 0.5, limit=200.0, most=1000, slow=2)
    assert 190 < took <= 200 and 100 < len(factors) < 200


def test_a_step_from_before_the_clock_began_moves_no_end() -> None:
    """On a GPU, a step's metrics arrive during the next step, so a new Deadline first gets those of an earlier step."""
    end, trainer = deadline.Deadline(deadline.time.monotonic() + 60.0), SimpleNamespace(step=21, steps=500)
    end.on_start(trainer)  # type: ignore[arg-type]
    end.on_step(trainer, StepResult(21, 1.0, {}, 1.0, 1.0, 1, 1, 0.1))  # type: ignore[arg-type]
    assert trainer.steps == 500
    end.on_step(trainer, StepResult(22, 1.0, {}, 1.0, 1.0, 1, 1, 0.1))  # type: ignore[arg-type]
    assert trainer.steps != 500


@pytest.mark.parametrize(("speed", "name"), [(0.002, "full"), (0.02, "middle"), (1.0, "small"), (100.0, "small")])
def test_the_quickstart_chooses_the_largest_size_that_fits(
    speed: float, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pace(run: Any, device: str) -> float:
        return speed * run.model.width * run.model.decoder.depth * run.batch.length / (64 * 1 * 64)

    monkeypatch.setattr(quickstart, "step_seconds", pace)
    run, end = quickstart.size_and_deadline("cpu", quickstart.time.monotonic(), 180.0)
    (line,) = capsys.readouterr().out.strip().splitlines()
    assert f"trains the {name} size" in line and f"about {run.steps:,} steps in 3 minutes" in line
    chosen = next(size for size in sizes() if size.name == name)
    assert run.model == chosen.run.model and run.steps >= (chosen.enough or 1)
    assert math.isclose(run.steps, 180 / pace(run, "cpu"), rel_tol=0.1, abs_tol=1)


def test_a_step_is_really_measured() -> None:
    assert hardware.least_seconds(lambda: time.sleep(0.01)) >= 0.01
    small = sizes()[0].run
    assert 0 < quickstart.step_seconds(af.override(small, {"model.decoder.depth": 1, "batch.examples": 2}), "cpu") < 60


# -- the table of names


def test_the_table_of_names_is_that_of_the_catalogue() -> None:
    """The catalogue's parameter counts are checked in tests/families/test_counts.py."""
    catalogue = [(name, family.name, size.published, family.about, size.note)
                 for family in families.catalogue().values() for name, size in family.sizes.items()]  # fmt: skip
    fields = ("name", "family", "published", "about", "note")
    table = [tuple(row[field] for field in fields) for row in listing.read_rows()]
    assert table == catalogue, "run python -m anyformer.cli.listing to update it"


def test_free_memory_is_what_the_system_and_a_container_say(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"meminfo": "MemTotal: 900 kB\nMemAvailable: 700 kB\n", "memory.max": "max\n", "memory.current": "4096\n"}

    def read(path: Path) -> str:
        if path.name not in files:
            raise FileNotFoundError(path)
        return files[path.name]

    monkeypatch.setattr(hardware.Path, "read_text", read)
    assert hardware.free_memory() == 700 * 1024
    files["memory.max"] = "10240\n"
    assert hardware.free_memory() == 6144
    del files["memory.max"], files["meminfo"]
    assert hardware.free_memory() == 0


@pytest.mark.parametrize("fast", [True, False])
def test_bf16_weights_on_a_cpu_without_bf16_are_said_to_be_slow(
    fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "ABILITIES", {**hardware.ABILITIES, "bf16": lambda: fast})
    af.save(model_of("gpt2").to(torch.bfloat16), tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        af.load(tmp_path / "model")  # too small to matter
    monkeypatch.setattr(checkpoint, "LARGE", 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert af.load(tmp_path / "model").dtype == torch.bfloat16
        af.load(tmp_path / "model", dtype=torch.float32)
    assert [("dtype float32" in str(each.message)) for each in caught] == ([] if fast else [True])
