"""Planning a training: the papers' figures, layouts that divide and fit, and the planned run."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.cli import main
from anyformer.planning import command
from anyformer.planning.compute import (
    PETAFLOP_DAY,
    chinchilla,
    epochs,
    estimate,
    hardware,
    hoffmann,
    hoffmann_loss,
    kaplan,
    kaplan_loss,
)
from anyformer.planning.layout import DeviceLayout, TrainingJob, parse_layout
from anyformer.specs.codec import to_json
from anyformer.train.device_specs import ACCELERATORS, accelerator, published_flops
from anyformer.train.run import read_run

HOUR, DAY = 3600, 86400


@pytest.fixture
def run(capsys: Any) -> Any:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


def small(**changes: Any) -> Any:
    sizes = {"width": 64, "decoder.depth": 4, "decoder.layers.attention.op.head_width": 8}
    return af.override(af.spec("gpt2"), {**sizes, **changes})


# -- known answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tokens", "printed"),
    [("gpt3-175b", 300e9, 3.14e23), ("gpt3-13b", 300e9, 2.31e22), ("llama3.1-405b", 15.6e12, 3.8e25)],
)
def test_compute_that_papers_print(name: str, tokens: float, printed: float) -> None:
    counted = af.count(af.spec(name))
    assert estimate(counted.parameters, tokens) == pytest.approx(printed, rel=0.01)
    exact = tokens * counted.training_flops(2048, causal=True) / 2048  # with scores, without embedding
    assert exact == pytest.approx(printed, rel=0.05)


def test_the_transformer_of_2017_counts_hardware_time() -> None:
    """Table 2 has 3.3e18 and 2.3e19: the peak of 8 P100 in 12 hours and 3.5 days, not the FLOPs of the products."""
    assert hardware(8, 12 * HOUR, 9.5e12) == pytest.approx(3.3e18, rel=0.01)
    assert hardware(8, 3.5 * DAY, 9.5e12) == pytest.approx(2.3e19, rel=0.01)
    tokens = 100_000 * 25_000  # steps, and target tokens of a batch
    assert estimate(65e6, tokens) < 0.35 * 3.3e18


def test_optimal_sizes() -> None:
    best = chinchilla(estimate(70e9, 1.4e12))
    assert (best.parameters, best.tokens) == pytest.approx((70e9, 1.4e12))
    assert kaplan(PETAFLOP_DAY).parameters == 1.3e9
    large, small = kaplan(1e24), chinchilla(1e24)
    assert large.parameters > 5 * small.parameters and large.parameters * large.tokens * 6 == pytest.approx(1e24)


def test_published_laws_at_their_limits() -> None:
    """Checks each constant: with infinite data or an infinite model, a law has only one term."""
    endless = 1e300
    assert hoffmann_loss(endless, endless) == pytest.approx(1.69)
    assert hoffmann_loss(1e9, endless) - 1.69 == pytest.approx(406.4 * 1e9**-0.34)
    assert hoffmann_loss(endless, 1e9) - 1.69 == pytest.approx(410.7 * 1e9**-0.28)
    assert kaplan_loss(8.8e13, endless) == kaplan_loss(endless, 5.4e13) == pytest.approx(1)
    assert kaplan_loss(1e9, endless) == pytest.approx(8.8e4**0.076)
    assert kaplan_loss(endless, 1e9) == pytest.approx(5.4e4**0.095)
    assert hoffmann_loss(70e9, 1.4e12) < hoffmann_loss(280e9, 300e9)  # Chinchilla and Gopher, as measured


@pytest.mark.parametrize("compute", [1e18, 5.88e23])
def test_the_choice_of_hoffmann_is_where_the_law_is_least(compute: float) -> None:
    best = hoffmann(compute)
    assert 6 * best.parameters * best.tokens == pytest.approx(compute)
    sizes = [best.parameters * 1.01**i for i in range(-300, 301)]
    losses = [hoffmann_loss(size, compute / 6 / size) for size in sizes]
    assert min(range(601), key=losses.__getitem__) == 300


def test_loss_of_a_plan(run) -> None:
    """Kaplan's N excludes embeddings; image models and encoder-decoders have no loss by a law of language models."""
    plan = json.loads(run("plan", "gpt2", "--tokens", "1e10", "--json")[1])
    inner = 124_439_808 - 50257 * 768 - 1024 * 768
    assert plan["loss"] == pytest.approx(
        {"Hoffmann": hoffmann_loss(124_439_808, 1e10), "Kaplan": kaplan_loss(inner, 1e10)}
    )
    assert "loss" not in json.loads(run("plan", "t5-small", "--json")[1])
    code, text, err = run("plan", "--compute", "5.88e23")
    assert (code, err) == (0, "") and re.search(r"Chinchilla +70B +1.4T +1.94 +1.74\n", text)


def test_epochs_of_bert() -> None:
    """A million steps of 256 texts of 512 tokens, over 3.3 billion words."""
    words = 1_000_000 * 256 * 512
    assert words == pytest.approx(1.31e11, rel=0.001) and epochs(words, 3.3e9) == pytest.approx(39.7, abs=0.05)


@pytest.mark.parametrize("figure", ["flops", "memory", "bandwidth", "link"])
def test_no_figure_of_a_data_sheet_lacks_a_power_of_ten(figure: str) -> None:
    figures = [getattr(each, figure) for each in ACCELERATORS.values()]
    assert max(figures) < 200 * min(figures)


# -- layouts ----------------------------------------------------------------------------------------------------------


def test_what_a_device_holds() -> None:
    """16 bytes per parameter, divided by the shards, a bf16 copy, and the activations of one text."""
    counted = af.count(small())
    job, P = TrainingJob(counted, 64, 16), counted.parameters
    alone = job.need(DeviceLayout())
    assert (alone.weights, alone.gradients, alone.optimizer, alone.buffers, alone.sent) == (6 * P, 4 * P, 8 * P, 0, 0)
    assert alone.activations == counted.work(64, half=torch.bfloat16).kept
    copies = job.need(DeviceLayout(replicate=4))
    assert copies.sent == 2 * 3 / 4 * 4 * P and copies.buffers == 4 * P
    pieces = job.need(DeviceLayout(shard=4))
    assert (pieces.gradients, pieces.optimizer, pieces.weights) == (P, 2 * P, P + 2 * P)
    assert pieces.sent == 4 * (3 / 4) * 3 * 4 * P  # four micro-batches: gathered twice, added up once
    half = job.need(DeviceLayout(tensor=2))
    linear = sum(size for address, size in counted.parts.items() if ".op." in address)
    assert half.gradients == 4 * (P - linear / 2) and half.activations < alone.activations
    stages = job.need(DeviceLayout(pipeline=4))
    assert stages.gradients == 4 * (job.outside + job.inside / 4) and job.depth == 4
    again = job.need(DeviceLayout(recompute=True))
    assert again.activations == counted.work(64, half=torch.bfloat16).recompute_bytes()
    assert job.flops(DeviceLayout(recompute=True)) * 3 == job.flops(DeviceLayout()) * 4


def test_experts_over_devices(run, tmp_path: Path) -> None:
    """A device stores its experts and its shard of the rest; tokens are sent instead of the experts' weights."""
    config = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
              "intermediate_size": 256, "num_local_experts": 8, "vocab_size": 50257,
              "architectures": ["MixtralForCausalLM"]}  # fmt: skip
    spec = af.families.find("mixtral").read(config)
    counted = af.count(spec)
    experts = 2 * 8 * 3 * 64 * 256  # layers, experts, matrices
    job, P, rest = TrainingJob(counted, 32, 16), counted.parameters, counted.parameters - experts
    four = job.need(DeviceLayout(expert=4))
    held = experts / 4 + rest / 4
    assert (four.gradients, four.optimizer) == (4 * held, 8 * held)
    assert four.weights == 4 * held + 2 * (experts / 4 + rest)  # bf16 copies: only of its own experts
    traffic = 2 * 4 * 32 * 2 * 64 * 2  # layers; to and from, forward and backward; tokens x experts x width in bf16
    assert four.sent == 4 * (3 / 4) * (3 * 4 * rest + traffic)
    both = job.need(DeviceLayout(shard=2, expert=2))
    assert both.gradients == 4 * P / 4 and both.weights == 4 * P / 4 + 2 * (experts / 2 + rest)
    assert both.sent == 4 * (3 * 4 * (experts / 2 / 2 + rest * 3 / 4) + traffic / 2)
    assert four.sent < both.sent < job.need(DeviceLayout(shard=4)).sent
    assert job.need(DeviceLayout(expert=4, recompute=True)).sent == 4 * (3 / 4) * (3 * 4 * rest + traffic * 6 / 4)
    assert DeviceLayout(expert=8) in [*job.usual(8)] and DeviceLayout(shard=3, expert=4) in [*job.usual(12)]
    assert parse_layout("expert=4", 8) == DeviceLayout(replicate=2, expert=4)
    for way, why in ((DeviceLayout(expert=3), "8 experts cannot be split over mesh.expert=3"),
                     (DeviceLayout(tensor=2, expert=2), "mesh.tensor splits the experts too")):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            job.need(way)
    (tmp_path / "spec.json").write_text(to_json(spec))
    out = tmp_path / "run.json"
    code, _, err = run("plan", tmp_path / "spec.json", "--length", 32, "--batch", 64, "--layout", "expert=4,shard=2",
                       "--tokens", "1e6", "--out", out)  # fmt: skip
    assert (code, err) == (0, "") and (read_run(out).mesh.expert, read_run(out).mesh.shard) == (4, 2)


def test_the_simplest_layout_that_fits() -> None:
    job = TrainingJob(af.count(small()), 64, 64)
    need = job.need(DeviceLayout(replicate=4)).total
    device = dataclasses.replace(accelerator("h100"), memory=need / 0.9 + 1)
    found = job.smallest(4, device)
    assert found is not None and found.way == DeviceLayout(replicate=4)
    tight = dataclasses.replace(device, memory=job.need(DeviceLayout(shard=4)).total / 0.9 + 1)
    found = job.smallest(4, tight)
    assert found is not None and found.way.shard > 1 and found.way.devices == 4 and found.fits(tight)
    more = dataclasses.replace(device, memory=job.need(DeviceLayout(shard=8, tensor=2, recompute=True)).total / 0.9 + 1)
    found = job.smallest(1, more)
    assert found is not None and found.way.devices > 1 and found.fits(more)
    assert not any(job.need(way).fits(more) for way in job.layouts(1))
    assert job.smallest(1, dataclasses.replace(device, memory=1000)) is None


def test_time_is_flops_over_what_is_used() -> None:
    job, device = TrainingJob(af.count(small()), 64, 16), accelerator("A100-80")
    assert job.seconds(DeviceLayout(shard=4), device, 0.5) == job.flops(DeviceLayout()) / (4 * 312e12 * 0.5)
    waiting = job.seconds(DeviceLayout(pipeline=4), device, 0.5) / job.seconds(DeviceLayout(shard=4), device, 0.5)
    assert waiting == pytest.approx((16 + 3) / 16)  # [Huang et al. 2019]


def test_what_cannot_divide() -> None:
    job = TrainingJob(af.count(small()), 64, 16)
    for way, why in (
        (DeviceLayout(tensor=5), "12 heads cannot be split over mesh.tensor=5"),
        (DeviceLayout(pipeline=3), "4 layers cannot be split"),
        (DeviceLayout(replicate=3), "a batch of 16 texts is not a multiple of 1 at once on 3 groups"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            job.need(way)
    assert parse_layout("shard=2, tensor=2,recompute", 8) == DeviceLayout(2, 2, 2, 1, True)
    wrong = {"shard=3": "multiple of 3 devices; there are 8", "shards=2": "the fields are", "shard=0": "the fields are"}
    for text, why in wrong.items():
        with pytest.raises(ValueError, match=why):
            parse_layout(text, 8)


def test_what_reads_no_text_is_planned_in_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "vit-b16", "--devices", "1", "--set", "encoder.depth=1"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("examples of 197 tokens")


def test_accelerators() -> None:
    assert published_flops("NVIDIA A100-SXM4-80GB") == 312e12 and published_flops("NVIDIA L40S") == 362e12
    assert published_flops("Tesla T4") == 65e12 and published_flops("NVIDIA H200") == 989e12
    assert published_flops("NVIDIA L4") == 121e12 and published_flops("NVIDIA GeForce RTX 4090") == 165e12
    assert published_flops("AMD Instinct MI300X OAM") == 1307e12
    assert all(published_flops(name) is None for name in ("GeForce 256", "NVIDIA L40", "NVIDIA A10G"))
    lectures = [(21.2e12, 16e9), (125e12, 32e9), (46e12, 16e9), (123e12, 32e9)]
    assert [(ACCELERATORS[name].flops, ACCELERATORS[name].memory)
            for name in ("P100", "V100", "TPU-v2", "TPU-v3")] == lectures  # fmt: skip
    assert published_flops("Tesla P100-SXM2-16GB") == 21.2e12
    assert {"A100-40", "A100-80", "H100", "H200", "B200", "L4", "T4", "TPU-v4", "TPU-v5p"} <= ACCELERATORS.keys()
    for each in ACCELERATORS.values():
        assert 2e13 < each.flops < 5e15 and 1e10 < each.memory < 1e12
        assert 2e10 < each.link < each.bandwidth < 1e13 < each.flops


# -- the verb ---------------------------------------------------------------------------------------------------------


def test_a_plan_and_its_run(run, tmp_path: Path) -> None:
    described = tmp_path / "small.json"
    described.write_text(to_json(small()))
    arguments = ("--compute", "1e16", "--length", "64", "--batch", "64", "--on", "a100-40", "--devices", "4",
                 "--price", "1.5")  # fmt: skip
    out = tmp_path / "planned.json"
    code, text, err = run("plan", described, *arguments, "--layout", "shard=2,recompute", "--out", out, "--json")
    assert (code, err) == (0, "")
    plan, written = json.loads(text), read_run(out)
    counted = af.count(small())
    token = counted.training_flops(64, causal=True) / 64
    assert plan["tokens"] == pytest.approx(1e16 / token) and plan["steps"] == round(1e16 / token / 4096)
    assert plan["chosen"]["cost"] == pytest.approx(plan["chosen"]["hours"] * 4 * 1.5)
    assert plan["chosen"]["seconds"] == pytest.approx(64 * 64 * token * 4 / 3 / (4 * 312e12 * 0.4))
    assert plan["command"] == f"torchrun --nproc-per-node 4 -m anyformer train {out}"
    assert written.model == small() and written.steps == plan["steps"] and written.recompute == ("*.layers.*",)
    assert (written.mesh.replicate, written.mesh.shard, written.mesh.tensor) == (2, 2, 1)
    assert (written.batch.examples, written.batch.micro, written.batch.length) == (64, 1, 64)
    code, text, err = run("plan", described, *arguments, "--corpus", "1e9")
    assert (code, err) == (0, "") and "the simplest that fits: 4 devices, replicate=4" in text
    assert "Chinchilla" in text and "Kaplan" in text and "is seen" in text and "device hours" in text


def test_a_model_that_needs_more_devices(run) -> None:
    code, text, err = run("plan", "gpt3-13b", "--tokens", "3e11", "--devices", "4", "--on", "T4", "--json")
    plan = json.loads(text)
    assert (code, err) == (0, "") and not any(each["fits"] for each in plan["layouts"])
    assert plan["chosen"]["fits"] and plan["chosen"]["devices"] > 4
    assert plan["estimate"] == pytest.approx(2.31e22, rel=0.01)


def test_many_machines() -> None:
    assert command(DeviceLayout(), Path("run.json")) == "python -m anyformer train run.json"
    assert "--nnodes 4 --nproc-per-node 8 " in command(DeviceLayout(replicate=4, tensor=8), Path("run.json"))
    # more than a machine has
    assert "--nnodes 4 --nproc-per-node 5 " in command(DeviceLayout(tensor=20), Path("run.json"))
    assert command(DeviceLayout(), Path("my runs/run.json")) == "python -m anyformer train 'my runs/run.json'"
    many = [{"replicate": 9}, {"shard": 11}, {"replicate": 6, "tensor": 3}, {"replicate": 20}]
    many.append({"shard": 3, "tensor": 4})
    for way in (DeviceLayout(**sizes) for sizes in many):
        nodes, each = map(int, re.findall(r"--n\S+ (\d+)", command(way, Path("run.json"))))
        assert nodes * each == way.devices and each <= 8 and each % way.tensor == 0


def test_pictures_are_as_long_as_they_are(run) -> None:
    """A DiT reads 256 patches of its latents; the default text length does not apply."""
    code, text, err = run("plan", "dit-xl-2", "--tokens", "1e12", "--json")
    plan = json.loads(text)
    assert (code, err) == (0, "") and plan["length"] == 256
    assert 0.5 < plan["compute"] / plan["estimate"] < 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [([], "give NAME, or --compute"), (["--compute", "1", "--layout", "shard=2"], "give NAME for --layout"),
     (["gpt2", "--on", "H1000"], "did you mean 'H100'?"), (["gpt2", "--tokens", "0"], "--tokens is 0"),
     (["gpt2", "--compute", "-1"], "--compute is -1"), (["gpt2", "--compute", "1", "--tokens", "1"], "not both"),
     (["gpt2", "--layout", "shard=3"], "needs a multiple of 3 devices; there are 8"),
     (["gpt2", "--layout", "tensor=8"], "12 heads cannot be split over mesh.tensor=8"),
     (["gpt2", "--layout", "expert=2"], "this model has no experts to split over processes"),
     (["gpt2", "--layout", "pipeline=8"], "12 layers cannot be split into pipeline=8"),
     (["gpt2", "--utilisation", "40"], "at most 1"), (["gtp2"], "did you mean 'gpt2'?"),
     (["gpt2", "--devices", "0"], "--devices is 0"), (["gpt2", "--length", "4096"], "takes at most 1,024"),
     (["bert-base", "--out", "run.json"], "--recipe"), (["gpt2", "--layout", ""], "the fields are replicate="),
     (["gpt2", "--layout", "shard=2,shard=4"], "shard is given twice"), (["gpt2", "--tokens", "inf"], "is inf"),
     (["gpt2", "--recipe", "gpt2-124m"], "--recipe is for the run.json that --out FILE writes"),
     (["gpt2", "--recipe", "bert-base-pretraining", "--out", "run.json"], "a model with a PretrainingHead"),
     (["bert-base", "--recipe", "gpt2-124m", "--out", "run.json"], "reads from left to right"),
     (["gpt2", "--batch", "7"], "a batch of 7 texts is not a multiple of 1 at once"),
     (["vit-b16", "--length", "8"], "--length: this model reads only pixel_values of 3 x 224 x 224"),
     (["gpt2", "--layout", "pipeline=4,replicate=2", "--out", "run.json"], "choose a layout with pipeline=1")],
)  # fmt: skip
def test_mistakes_are_one_line(run, arguments: list[str], line: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("plan", *arguments)
    assert (code, out) == (2, "") and err.count("\n") == 1 and line in err
    assert not any(tmp_path.iterdir())
