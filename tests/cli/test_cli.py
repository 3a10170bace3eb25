"""The command line: C1, and X1 and X2 on complete model folders."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer import cli, families
from anyformer.tasks.table import TASKS
from anyformer.weights.io import Checkpoint, write_checkpoint
from terminals import terminal

CONFIG = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 20, "n_positions": 8}
SLOW_IMPORTS = {"torch", "numpy", "rich", "huggingface_hub"}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 in Hugging Face's layout."""
    folder = tmp_path_factory.mktemp("published") / "gpt2"
    spec = families.find("gpt2").read(CONFIG)
    af.save(af.build(spec, seed=3), folder, format="hf")
    return folder


@pytest.fixture
def model(published: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in published.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def one_line(result: tuple[int, str, str], *words: str) -> None:
    """A user's mistake: exit code 2, nothing on stdout, one line on stderr with these words in it."""
    code, out, err = result
    assert (code, out) == (2, ""), result
    assert err.count("\n") == 1 and err.endswith("\n") and "Traceback" not in err, err
    for word in words:
        assert word in err, err


# -- starting ---------------------------------------------------------------------------------------------------------


# command -> exit code; the first ones print plain text, the later ones may draw it
AT_ONCE = {
    "": 0, "--version": 0, "count --help": 0, "parts --help": 0, "zoom": 2, "zoo --jsn": 2, "count": 2, "--hlp": 2,
    "convert a b --format hff": 2, "count ./nowhere": 2,
}  # fmt: skip
WITHOUT_TORCH = {
    "parts rotary": 0, "parts 'typical sampling'": 0, "parts 'paged attention'": 2,  # a Part, a mentioned and no term
    "completion bash": 0, "run --list": 0, "run --help": 0, **{f"run {task} --help": 0 for task in TASKS},
}  # fmt: skip
RUN_ALL = """
import json, shlex, sys, time
from anyformer import cli
for absent, commands in json.loads(sys.argv[1]):
    for command, code in commands.items():
        start = time.process_time()
        assert cli.main(shlex.split(command)) == code, command
        assert time.process_time() - start < 1, command
        assert not {*absent} & sys.modules.keys(), command
"""


def test_help_and_mistakes_answer_at_once_without_torch() -> None:
    """One process runs them all: what one of them imports would still be there after the next."""
    commands = json.dumps([((*SLOW_IMPORTS,), AT_ONCE), (("torch",), WITHOUT_TORCH)])
    done = subprocess.run([sys.executable, "-c", RUN_ALL, commands], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_module_is_the_command() -> None:
    taken = []
    for _ in range(4):  # the machine may be busy with something else, which costs this process time too
        before = os.times()
        command = [sys.executable, "-X", "importtime", "-m", "anyformer", "--help"]
        done = subprocess.run(command, capture_output=True, text=True)
        after = os.times()
        taken.append(after.children_user + after.children_system - before.children_user - before.children_system)
        assert done.returncode == 0 and "usage: anyformer" in done.stdout
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "anyformer.cli" in imported and not imported & SLOW_IMPORTS
        if taken[-1] < 1:
            break
    assert min(taken) < 1


def test_version(run) -> None:
    assert run("--version") == (0, f"anyformer {af.__version__}\n", "")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_every_verb(run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert code == 0 and err == "" and all(f"  {verb} " in out for verb in cli.verbs())


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help(run, verb: str) -> None:
    code, out, err = run(verb, "--help")
    assert code == 0 and err == "" and f"usage: anyformer {verb}" in out
    assert "lectures" not in out  # users of a command need not know them


def test_the_line_is_one_line_whatever_it_quotes(run) -> None:
    one_line(run("count", "gpt2\n\x1b[31m" + "x" * 10_000), "more characters")


def test_interrupts_bugs_and_full_disks(run, monkeypatch) -> None:
    def fail(error: BaseException) -> None:
        def raises(arguments: object) -> None:
            raise error

        monkeypatch.setattr(cli, "dispatch", raises)

    monkeypatch.delenv("ANYFORMER_DEBUG", raising=False)
    fail(KeyboardInterrupt())
    assert run() == (130, "", "anyformer: stopped\n")
    fail(OSError(errno.ENOSPC, "No space left on device"))
    one_line(run(), "No space left on device")
    fail(PermissionError(errno.EACCES, "Permission denied", "/x/y"))
    one_line(run(), "/x/y: Permission denied")
    fail(ConnectionError("the hub cannot be reached"))
    one_line(run(), "the hub cannot be reached")
    fail(TypeError("what now"))
    code, out, err = run()
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "bug" in err and "ANYFORMER_DEBUG" in err and "what now" in err
    monkeypatch.setenv("ANYFORMER_DEBUG", "1")
    code, _, err = run()
    assert code == 1 and "Traceback" in err and err.splitlines()[-1].startswith("anyformer: ")
    fail(ValueError("a mistake"))
    code, _, err = run()
    assert code == 2 and "Traceback" in err


def test_a_reader_that_has_enough_is_no_error() -> None:
    done = subprocess.run(f"{sys.executable} -m anyformer --help | true", shell=True, capture_output=True, text=True)
    assert done.stderr == ""


# -- zoo and count ----------------------------------------------------------------------------------------------------


def test_zoo_lists_every_name(run) -> None:
    code, out, err = run("zoo", "--json")
    rows = json.loads(out)
    assert (code, err) == (0, "") and [row["name"] for row in rows] == [name for name, _ in families.names()]
    gpt2 = next(row for row in rows if row["name"] == "gpt2")
    assert (gpt2["parameters"], gpt2["published"], gpt2["family"]) == (124_439_808, 124e6, "gpt2") and gpt2["about"]


def test_zoo_of_a_family_is_plain_aligned_text_in_a_pipe(run) -> None:
    code, out, err = run("zoo", "--family", "gpt2")
    header, *rows = out.splitlines()
    assert (code, err) == (0, "") and out.isascii() and "\x1b" not in out
    assert [row.split()[0] for row in rows] == list(families.find("gpt2").sizes)
    end = header.index("parameters") + len("parameters")
    assert all(row[end - 1] in "KMBT" and row[end] == " " for row in rows)


@pytest.mark.parametrize("name, found", [
    ("T5", {"t5"}),
    ("DeepSeek", {"deepseek_v2", "deepseek_v3"}),
    ("gpt3-175b", {"gpt2"}),
    ("diffusion", {"autoencoder_kl", "dit", "dit_text"}),
])  # fmt: skip
def test_zoo_by_name_and_by_purpose(run, name: str, found: set[str]) -> None:
    rows = json.loads(run("zoo", name, "--json")[1])
    assert {row["family"] for row in rows} == found
    assert run("zoo", "nonsense")[0] == 2 and {
        row["family"] for row in json.loads(run("zoo", "--family", "Qwen2", "--json")[1])
    } == {"qwen2"}


def test_count_by_part(run) -> None:
    code, out, err = run("count", "gpt3-175b", "--json", "--depth", "9", "--dtype", "bfloat16")
    counted, expected = json.loads(out), af.count(af.spec("gpt3-175b"))
    assert (code, err) == (0, "") and counted["parameters"] == expected.parameters == sum(counted["parts"].values())
    assert counted["bytes"] == 2 * expected.parameters
    assert counted["parts"]["decoder.layers.attention.op.q"] == 96 * (12288 * 12288 + 12288)
    assert counted["tied"] == {"head.out.weight": "embedding.tokens.weight"}
    code, out, err = run("count", "gpt3-175b", "--depth", "1")
    assert [line.split()[0] for line in out.splitlines()[:4]] == ["part", "embedding", "decoder", "total"]
    assert f"{expected.parameters:,}" in out and "counted once" in out


def test_count_with_other_values(run, published: Path, tmp_path: Path) -> None:
    def parameters(*arguments: object) -> int:
        code, out, err = run("count", *arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)["parameters"]

    spec = af.spec(published)
    assert parameters(published) == af.count(spec).parameters
    deeper = af.override(spec, {"decoder.depth": 5, "decoder.norm": {"kind": "RMSNorm"}})
    expected = af.count(deeper).parameters
    assert parameters(published, "--set", "decoder.depth=5", "--set", 'decoder.norm={"kind": "RMSNorm"}') == expected
    af.save(af.build(deeper), tmp_path / "deeper")
    assert parameters(tmp_path / "deeper" / "spec.json") == parameters(tmp_path / "deeper") == expected
    # a value that is not JSON is a text
    assert parameters(published, "--set", "decoder.layers.feedforward.op.activation=relu") == af.count(spec).parameters


def test_a_terminal_gets_a_drawn_table_and_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, "stdout", "stderr") as pieces:
        assert cli.main(["count", "gpt2"]) == 0
    shown = b"".join(pieces)
    assert b"\x1b[" in shown and "─".encode() in shown and b"124,439,808" in shown and b"counting gpt2" in shown


def test_count_at_a_length(run, tmp_path: Path) -> None:
    picture, few = tmp_path / "parts.svg", ("--set", "decoder.depth=2")
    words = ("--length", "100", "--batch", "3", "--causal", "--json", "--picture", picture)
    code, out, err = run("count", "gpt2", *few, *words)
    found, counted = json.loads(out), af.count(af.override(af.spec("gpt2"), {"decoder.depth": 2}))
    assert (code, err) == (0, "") and "decoder.layers.attention" in picture.read_text()
    assert found["flops"]["batch"] == counted.flops(100, 3, causal=True) == 3 * sum(found["flops_parts"].values())
    assert found["flops"]["training"] == counted.training_flops(100, 3, causal=True)
    assert found["memory"]["writing"]["state"] == counted.state(3, 100)
    assert found["memory"]["training"]["total"] == counted.memory(torch.float32, 3, 100, training=True).total
    assert found["passes"]["decode"]["intensity"] < 2 < found["passes"]["prefill"]["intensity"]


def test_count_of_a_sliding_window(run) -> None:
    """FLOPs of the whole square that a kernel computes, and of the pairs that the mask needs."""
    masks = '[{"kind": "Causal"}, {"kind": "Window", "size": 9}]'
    window = f'decoder.layers.attention.op.mask={{"kind": "All", "masks": {masks}}}'
    words = ("count", "gpt2", "--length", "100", "--set", window, "--set", "decoder.depth=2")
    code, out, err = run(*words, "--batch", "2", "--json")
    found, products = json.loads(out), 2 * 4 * 768  # 2 layers, both products: 4 d per pair
    assert (code, err) == (0, "")
    assert found["flops"]["text"] - found["flops_needed"]["text"] == products * (100 * 100 - (45 + 91 * 9))
    assert found["flops_needed"]["batch"] == 2 * found["flops_needed"]["text"]
    code, out, err = run(*words)
    assert (code, err) == (0, "") and "the masks need" in out


def test_count_of_an_image(run) -> None:
    """FLOPs of an image model's positions without --length; a given --length is refused."""
    words = ("count", "vit-b16", "--set", "encoder.depth=2")
    code, out, err = run(*words, "--batch", "2", "--json")
    found, counted = json.loads(out), af.count(af.override(af.spec("vit-b16"), {"encoder.depth": 2}))
    assert (code, err) == (0, "") and found["positions"] == 197
    assert found["flops"]["image"] == counted.flops(1) and found["flops"]["batch"] == 2 * counted.flops(1)
    assert found["flops"]["position"] == counted.flops(1) // 197
    code, out, err = run(*words)
    assert (code, err) == (0, "") and "FLOPs per position" in out and "(197 positions)" in out
    for more in ([], ["--by", "size"]):
        line = "--length: this model reads only pixel_values of 3 x 224 x 224"
        one_line(run("count", "vit-b16", "--length", "512", *more), line)


def test_count_of_fixed_tables(run) -> None:
    code, out, err = run("count", "transformer-big", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "") and found["bytes"] == 4 * (found["parameters"] + found["fixed"])
    assert "2,097,152 numbers of fixed position tables" in run("count", "transformer-big")[1]


def test_what_is_drawn_is_what_is_shown(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOPs of an encoder-decoder with --source-length, also with --by size."""
    from anyformer.counting import picture

    drawn: list[dict[str, int]] = []
    monkeypatch.setattr(picture, "by_part", lambda path, title, parts, flops: drawn.append(flops))
    given = ("--length", "5", "--source-length", "50", "--json")
    code, out, err = run("count", "t5-small", *given, "--picture", tmp_path / "t5.svg")
    assert (code, err) == (0, "") and drawn == [json.loads(out)["flops_parts"]]
    code, out, err = run("count", "t5-s", "--by", "size", *given)
    assert (code, err) == (0, "")
    assert json.loads(out)["sizes"][0]["flops"] == af.count(af.spec("t5-small")).flops(5, source_length=50)


def test_count_by_size(run, tmp_path: Path) -> None:
    code, out, err = run("count", "gpt3-1", "--by", "size", "--json", "--picture", tmp_path / "sizes.png")
    sizes = json.loads(out)["sizes"]
    assert (code, err) == (0, "") and (tmp_path / "sizes.png").stat().st_size > 1000
    assert [each["name"] for each in sizes] == ["gpt3-13b", "gpt3-175b"]
    for each, width in zip(sizes, (5140, 12288), strict=True):  # of 24 d d + 4 n d a layer; the head is little
        assert each["outside"] == pytest.approx(1 - 2048 / (6 * width + 2048), rel=0.005)
        assert sum(each["shares"].values()) == pytest.approx(1)


@pytest.mark.parametrize(("name", "given", "beginning"), [
    ("vit-b", (), "FLOPs of pixel_values of 3 x 224 x 224; "),
    ("wav2vec2-base", ("--length", "16000"), "FLOPs of input_values of 16000; "),
    ("whisper-tiny.en", (), "FLOPs of 448 tokens from input_features of 80 x 3000; "),  # as many as it can write
    ("t5-s", ("--length", "5", "--source-length", "50"), "FLOPs of 5 tokens from 50 tokens; "),
])  # fmt: skip
def test_count_by_size_says_what_is_read(run, name: str, given: tuple[str, ...], beginning: str) -> None:
    code, out, err = run("count", name, "--by", "size", *given)
    assert (code, err) == (0, "") and out.startswith(beginning) and "reads" not in out


def test_sizes_that_read_images_of_several_sizes_say_so_in_each_row(run, monkeypatch: pytest.MonkeyPatch) -> None:
    two = [pair for pair in families.names() if pair[0] in ("swin-tiny", "swinv2-tiny")]
    monkeypatch.setattr(families, "names", lambda: two)  # the others take seconds each
    code, out, err = run("count", "swin", "--by", "size")
    assert (code, err) == (0, "") and out.startswith("FLOPs of the input of each; ")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines["swin-tiny"].endswith("pixel_values of 3 x 224 x 224")
    assert lines["swinv2-tiny"].endswith("pixel_values of 3 x 256 x 256")


def test_a_picture_without_matplotlib(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    one_line(run("count", "gpt2", "--picture", "parts.png"), "needs matplotlib: pip install 'anyformer[train]'")


# -- convert ----------------------------------------------------------------------------------------------------------


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    with Checkpoint(folder) as checkpoint:
        return {name: checkpoint.read(name).clone() for name in checkpoint.names}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def test_convert_there_and_back_is_bit_identical(run, published: Path, tmp_path: Path, monkeypatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    ours, theirs = tmp_path / "deep" / "er" / "ours", tmp_path / "theirs"
    theirs.mkdir()  # an empty folder is accepted
    code, out, err = run("convert", published, ours, "--offline")
    assert (code, err) == (0, "") and out.count("\n") == 1 and "GPT2LMHeadModel" in out and "float32" in out
    assert sorted(path.name for path in ours.iterdir()) == ["model.safetensors", "spec.json"]
    assert run("convert", ours, theirs, "--format", "hf")[0] == 0
    assert same(tensors(published), tensors(theirs))
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (published, theirs))
    assert before == after
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "theirs"]


def test_convert_counts_what_it_writes(run, published: Path, tmp_path: Path) -> None:
    """A merged adapter is part of the base model's weights; --format peft writes only the adapter."""
    model = af.load(published)
    size = sum(parameter.numel() for parameter in model.parameters())
    af.lora.apply(model, af.lora.LoRA(rank=2, targets=("*.q",)))
    for module in model.modules():
        if hasattr(module, "lora_b"):
            torch.nn.init.normal_(module.lora_b)
    adapter = sum(parameter.numel() for name, parameter in model.named_parameters() if ".lora_" in name)
    af.save(model, tmp_path / "adapter", format="peft")
    for form, parameters in (("hf", size), ("anyformer", size), ("peft", adapter)):
        code, out, _ = run("convert", tmp_path / "adapter", tmp_path / form, "--format", form)
        assert code == 0 and f" {parameters:,} parameters, float32" in out
    assert sum(map(torch.numel, tensors(tmp_path / "anyformer").values())) == size
    ids = torch.tensor([[1, 2, 3]])
    for form in ("hf", "anyformer", "peft"):
        opened = af.load(tmp_path / form)
        assert torch.allclose(opened(input_ids=ids).logits, model.eval()(input_ids=ids).logits, atol=1e-5)


def test_convert_to_another_dtype(run, published: Path, tmp_path: Path) -> None:
    assert run("convert", published, tmp_path / "half", "--dtype", "bfloat16", "--format", "hf")[0] == 0
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors(tmp_path / "half").values())
    assert af.load(tmp_path / "half").dtype == torch.bfloat16
    one_line(run("convert", published, tmp_path / "other", "--dtype", "bfloat"), "did you mean 'bfloat16'?")


def test_convert_quantizes(run, published: Path, tmp_path: Path) -> None:
    """The folder holds rounded weights and opens as such; `--format hf` of it writes floats again."""
    size = sum(parameter.numel() for parameter in af.load(published).parameters())
    code, out, _ = run("convert", published, tmp_path / "small", "--quantize", "int8")
    assert code == 0 and f" {size:,} parameters, float32, linear layers in int8" in out
    stored, ids = tensors(tmp_path / "small"), torch.tensor([[1, 2, 3]])
    assert stored["decoder.layers.0.attention.op.q.weight"].dtype == torch.int8
    with torch.no_grad():
        wanted = af.transforms.quantize.quantize(af.load(published))(input_ids=ids).logits
        assert torch.equal(af.load(tmp_path / "small")(input_ids=ids).logits, wanted)
    assert run("convert", tmp_path / "small", tmp_path / "hf", "--format", "hf")[0] == 0
    assert all(tensor.is_floating_point() for tensor in tensors(tmp_path / "hf").values())
    one_line(run("convert", published, tmp_path / "x", "--quantize", "int9"), "did you mean 'int8'?")
    one_line(run("convert", published, tmp_path / "x", "--quantize", "int8", "--format", "hf"), "leave out --format")


@pytest.mark.parametrize(("size", "special", "read"), [
    (20, {"bos_token_id": 5, "eos_token_id": 7}, (5, 7)),
    (20, {}, (None, None)),  # GPT-2's own, 50256, would be outside
    (50257, {}, (50256, 50256)),
], ids=str)  # fmt: skip
def test_an_export_keeps_its_special_tokens(
    run, tmp_path: Path, size: int, special: dict[str, int], read: tuple[int | None, int | None]
) -> None:
    """As transformers reads them."""
    transformers = pytest.importorskip("transformers")
    spec = families.find("gpt2").read({**CONFIG, "n_layer": 1, "n_embd": 4, "vocab_size": size, **special})
    af.save(af.build(spec), tmp_path / "ours")
    assert run("convert", tmp_path / "ours", tmp_path / "hf", "--format", "hf")[0] == 0
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hf")
    assert (config.bos_token_id, config.eos_token_id) == read


def test_an_export_that_cannot_be_says_why(run, published: Path, tmp_path: Path) -> None:
    """The error names the first field that no config can describe, not the last one."""
    changes = {"decoder.layers.feedforward.op": {"kind": "GatedMLP", "width": 8}, "decoder.norm": {"kind": "RMSNorm"}}
    for path, value in changes.items():
        folder = tmp_path / path
        af.save(af.build(af.override(af.load(published).spec, {path: value})), folder)
        result = run("convert", folder, tmp_path / "hf", "--format", "hf")
        one_line(result, f"{path} is {value['kind']}, ", "format='anyformer'")


def test_convert_overwrites_a_model_when_asked(run, published: Path, model: Path) -> None:
    (model / "notes.txt").write_text("mine")
    assert run("convert", model, model, "--overwrite")[0] == 0
    assert {path.name for path in model.iterdir()} == {"spec.json", "model.safetensors", "notes.txt"}
    before, after = af.load(published).state_dict(), af.load(model).state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_convert_never_writes_over_anything(run, published: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    one_line(run("convert", published, tmp_path / "file"), "is a file")
    one_line(run("convert", published, tmp_path / "file" / "below"), "file")
    one_line(run("convert", published, tmp_path / "full"), "not empty")
    one_line(run("convert", published, published), "not empty")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full", "mine"]


@pytest.mark.parametrize("there", [False, True])
def test_a_write_that_fails_leaves_nothing(run, published: Path, tmp_path: Path, there: bool, monkeypatch) -> None:
    """A file size limit simulates a full disk."""
    target = tmp_path / "out"
    if there:
        target.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        result = run("convert", published, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    one_line(result, "File too large")
    assert list(tmp_path.rglob("*")) == ([target] if there else [])

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("anyformer.checkpoint.write_json", full)  # the weights are written by then
    one_line(run("convert", published, target), "No space left on device")
    assert list(tmp_path.rglob("*")) == ([target] if there else [])


def test_a_folder_that_may_not_be_written(run, published: Path, tmp_path: Path) -> None:
    one_line(run("convert", published, "/proc/anyformer/out"), "/proc")
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "locked").mkdir(mode=0o500)
    one_line(run("convert", published, tmp_path / "locked"), "Permission denied")
    one_line(run("convert", published, tmp_path / "locked" / "out"), "Permission denied")


# -- bad models: X1, X2 -----------------------------------------------------------------------------------------------


def change_config(**values: object) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **values}))

    return spoil


def change_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        held = tensors(folder)
        change(held)
        write_checkpoint(folder, held)

    return spoil


def raw(name: str, content: bytes | str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return spoil


def header(content: object, length: int | None = None) -> Callable[[Path], None]:
    text = json.dumps(content).encode()
    return raw("model.safetensors", (len(text) if length is None else length).to_bytes(8, "little") + text)


def truncate(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def pickled(folder: Path) -> None:
    """A pickle that would create a file when it is loaded."""

    class Mark:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {folder / 'ran'}",)

    import pickle

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Mark()))


def index_that_leaves(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    index = {"weight_map": {"wte.weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


SPOILED: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated weights": (truncate, "model.safetensors"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
    "empty weights": (raw("model.safetensors", b""), "truncated"),
    "huge header": (header({}, 2**62), "truncated"),
    "header that is not JSON": (raw("model.safetensors", (4).to_bytes(8, "little") + b"{{{{"), "not valid JSON"),
    "tensor out of bounds": (
        header({"wte.weight": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}), "outside"
    ),
    "100,000 tensors": (lambda folder: header({f"t{i}": {} for i in range(100_000)})(folder), "tensors"),
    "nested header": (
        raw("model.safetensors", (200_000).to_bytes(8, "little") + b'{"":' * 50_000), "nested too deeply"
    ),
    "pickled weights": (pickled, "pickled weights can run code and are refused"),
    "index that leaves the folder": (index_that_leaves, "outside.safetensors"),
    "missing tensor": (change_weights(lambda held: held.pop("transformer.h.1.mlp.c_fc.weight")),
                       "missing transformer.h.1.mlp.c_fc.weight (here decoder.layers.1.feedforward.op.up.weight)"),
    "surplus tensor": (change_weights(lambda held: held.update(extra=torch.zeros(2))), "unexpected extra"),
    "wrong shape": (change_weights(lambda held: held.update({"transformer.h.0.ln_1.weight": torch.ones(7)})),
                    "wrong shape transformer.h.0.ln_1.weight (here decoder.layers.0.attention.pre_norm.weight; "),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "config that is not JSON": (raw("config.json", "{"), "config.json: not valid JSON"),
    "config that is a list": (raw("config.json", "[]"), "expected a JSON object"),
    "nested config": (raw("config.json", '{"a":' * 100_000), "nested too deeply"),
    "nested value": (
        raw("config.json", '{"model_type": "gpt2", "task_specific_params":' + '{"a":' * 400 + "1" + "}" * 401), ""
    ),
    "huge config": (lambda folder: raw("config.json", b" " * (64 * 2**20 + 1))(folder), "larger than"),
    "config of millions of values": (
        lambda folder: raw("config.json", "[" + "1," * 5_000_000 + "1]")(folder), "values"
    ),
    "key given twice": (raw("config.json", '{"model_type": "gpt2", "n_layer": 1, "n_layer": 2}'), "given twice"),
    "model_type of the wrong kind": (change_config(model_type=5), "config.json"),
    "unknown model_type": (change_config(model_type="gpt22"), "nearest relatives: gpt2, "),
    "unknown architecture": (change_config(architectures=["GPT2LMHeadModels"]), "did you mean 'GPT2LMHeadModel'?"),
    "value of the wrong kind": (change_config(n_layer="two"), "config.json"),
    "architectures of the wrong kind": (change_config(architectures=5), "config.json"),
    "no heads": (change_config(n_head=0), "config.json"),
    "a million million layers": (change_config(n_layer=10**12), "n_layer=1000000000000 is above the maximum of 10,000"),
    "spec.json of a part": (raw("spec.json", '{"anyformer": 1, "kind": "LayerNorm"}'), "not a model"),
    "spec.json of an unknown kind": (
        raw("spec.json", '{"anyformer": 1, "kind": "DecoderModle"}'), "did you mean 'DecoderModel'?"
    ),
    "spec.json of another format": (raw("spec.json", '{"anyformer": 99, "kind": "DecoderModel"}'), "format"),
}  # fmt: skip


@pytest.mark.parametrize("fault", SPOILED)
def test_bad_models_are_one_line_and_nothing_is_written(run, model: Path, tmp_path: Path, fault: str) -> None:
    spoil, words = SPOILED[fault]
    spoil(model)
    before = sorted(tmp_path.rglob("*"))
    start = time.process_time()
    result = run("convert", model, tmp_path / "out", "--offline")
    if words or result[0]:  # without words: may be fine, must not be a traceback
        one_line(result, words)
        assert sorted(tmp_path.rglob("*")) == before
    assert time.process_time() - start < 10


def test_fields_that_no_class_knows_are_one_line_and_written_back(run, model: Path, tmp_path: Path) -> None:
    change_config(n_layers=3, output_past=True, adapter_dim={"a": [1]})(model)
    code, _, err = run("convert", model, tmp_path / "out", "--offline", "--format", "hf")
    assert code == 0 and err.count("\n") == 1 and err.startswith("anyformer: warning: ")
    assert "'n_layers', 'output_past', 'adapter_dim'" in err
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["n_layers"], written["adapter_dim"]) == (3, {"a": [1]}) and written["n_layer"] != 3


def test_folders_and_ids_that_are_not_there(run, tmp_path: Path, monkeypatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    one_line(run("convert", tmp_path / "nowhere", tmp_path / "out"), "no such folder")
    one_line(run("convert", "nobody/nothing-of-that-name", tmp_path / "out", "--offline"), "not in the cache")
    one_line(run("convert", "no body", tmp_path / "out", "--offline"), "neither a folder nor a hub id")
    assert not (tmp_path / "out").exists()


def test_no_code_of_a_checkpoint_runs(run, model: Path, tmp_path: Path) -> None:
    """`auto_map` names classes in Python files next to the weights; transformers imports them if allowed."""
    (model / "modeling_evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    change_config(auto_map={"AutoModelForCausalLM": "modeling_evil.Evil", "AutoConfig": "modeling_evil.Evil"})(model)
    assert run("count", model)[0] == 0
    assert run("convert", model, tmp_path / "out")[0] == 0
    assert not (tmp_path / "ran").exists() and "modeling_evil" not in sys.modules
    assert not list((tmp_path / "out").glob("*.py"))
