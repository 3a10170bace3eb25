"""hub.py: folders are used directly, hub ids are downloaded without files that could run, errors are one line."""

import fnmatch
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from anyformer.weights.hub import resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No offline variables, an empty cache and an empty working folder."""
    for variable in ("ANYFORMER_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """The arguments of all calls of snapshot_download."""
    asked: list[dict[str, Any]] = []

    def download(name: str, **options: Any) -> str:
        asked.append({"name": name, **options})
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def blocked(*_: Any, **__: Any) -> None:
        raise AssertionError("a socket was opened")

    for name in ("socket", "getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, blocked)


def line(kind: type[Exception], name: str | Path, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        resolve(name, **options)
    assert caught.type is kind
    assert caught.value.__cause__ is None and (caught.value.__context__ is None or caught.value.__suppress_context__)
    assert "\n" not in str(caught.value) and repr(str(name))[1:-1] in str(caught.value)
    return str(caught.value)


def cached(tmp_path: Path, *files: str, name: str = "owner/name") -> Path:
    """Write a snapshot in huggingface_hub's layout."""
    home = tmp_path / "cache" / f"models--{name.replace('/', '--')}"
    snapshot = home / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT)
    for file in files:
        (snapshot / file).write_text("{}")
    return snapshot


# Folders


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[Any]) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve(tmp_path) == tmp_path and resolve(str(tmp_path)) == tmp_path
    assert resolve("owner/name") == Path("owner/name")
    assert resolve("~/owner") == tmp_path / "owner"
    assert calls == []
    assert "revision" in line(ValueError, "owner/name", revision="v1")


@pytest.mark.parametrize(
    "name", ["./x", "../x", "/x", "/x/y/z", "~/x", "~nobody-here/x", "x/", "a/b/c", "a\\b", "./" + "x" * 300]
)
def test_a_missing_folder_is_not_looked_for_on_the_hub(name: str, calls: list[Any]) -> None:
    assert "no such folder" in line(FileNotFoundError, name)
    assert calls == []


def test_a_name_beside_folders_is_a_folder(tmp_path: Path, no_sockets: None) -> None:
    """A misspelled run is not looked up on the hub; cached models are still found."""
    for name in ("runs/texts", "runs/films", "owner/other"):
        Path(name).mkdir(parents=True)
    assert line(FileNotFoundError, "runs/text") == "runs/text: no such folder; did you mean runs/texts?"
    assert line(FileNotFoundError, "./runs/text") == "./runs/text: no such folder; did you mean ./runs/texts?"
    assert line(FileNotFoundError, "runs/zz") == "runs/zz: no such folder; runs has films, texts"
    snapshot = cached(tmp_path, "config.json")
    assert resolve("owner/name") == snapshot


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert "is a file" in line(ValueError, "model.safetensors")


def test_a_local_folder_does_not_import_the_hub(tmp_path: Path) -> None:
    code = f"from anyformer.weights.hub import resolve; resolve({str(tmp_path)!r}); import sys; " \
           "sys.exit('huggingface_hub' in sys.modules or 'torch' in sys.modules)"  # fmt: skip
    assert (
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ).returncode
        == 0
    )


# Hub ids


@pytest.mark.parametrize("name", ["gpt2", "openai-community/gpt2", "a/b", "Foo-BAR_foo.bar123", Path("owner/name")])
def test_an_id_is_fetched(name: str | Path, calls: list[dict[str, Any]], tmp_path: Path) -> None:
    assert resolve(name, revision="v1") == tmp_path
    (call,) = calls
    assert (call["name"], call["revision"], call["local_files_only"]) == (str(name), "v1", False)


def test_only_what_a_model_needs_is_fetched(calls: list[dict[str, Any]]) -> None:
    resolve("owner/name")

    def fetched(file: str) -> bool:
        inside, outside = calls[0]["allow_patterns"], calls[0]["ignore_patterns"]
        return any(fnmatch.fnmatch(file, p) for p in inside) and not any(fnmatch.fnmatch(file, p) for p in outside)

    wanted = """config.json model.safetensors model-00001-of-00002.safetensors model.safetensors.index.json
        tokenizer.json vocab.txt merges.txt spiece.model chat_template.jinja 1_Pooling/config.json"""
    unwanted = """pytorch_model.bin modeling_x.py tf_model.h5 model.pt onnx/model.safetensors rust_model.ot
        consolidated.safetensors model.gguf training_args.bin flax_model.msgpack last.ckpt x.pkl"""
    assert [file for file in wanted.split() if not fetched(file)] == []
    assert [file for file in unwanted.split() if fetched(file)] == []


def test_a_model_comes_with_the_autoencoder_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a hub repository with these files, `vae/` is downloaded completely, and other copies are not."""
    there = """spec.json model.safetensors vae/spec.json vae/model.safetensors vae/model.safetensors.index.json
        vae/model-00001-of-00002.safetensors vae/optimizer.pt onnx/config.json onnx/model.safetensors
        vae/diffusion_pytorch_model.safetensors vae/diffusion_pytorch_model.fp16.safetensors"""

    def snapshot_download(name: str, **options: Any) -> str:
        inside, outside = options["allow_patterns"], options["ignore_patterns"]
        for file in there.split():
            allowed = any(fnmatch.fnmatch(file, p) for p in inside)
            if allowed and not any(fnmatch.fnmatch(file, p) for p in outside):
                (tmp_path / file).parent.mkdir(exist_ok=True)
                (tmp_path / file).touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve("owner/name") == tmp_path
    found = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    missing = {*there.split()} - found
    assert missing == {"vae/optimizer.pt", "onnx/model.safetensors", "vae/diffusion_pytorch_model.fp16.safetensors"}


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "-x", "x-", "x.git", "a--b", "a..b", "a/-b", "x" * 200, "a\nb", "é", "a:b", "x\0y"]
)
def test_a_malformed_id_is_refused_before_any_call(name: str, calls: list[Any]) -> None:
    assert "neither a folder nor a hub id" in line(ValueError, name)
    assert calls == []


def response(status: int) -> Any:
    from httpx2 import Request, Response

    return Response(status, request=Request("GET", "https://huggingface.co/x"))


FAILURES = {
    "gated": (lambda: errors.GatedRepoError("a\nb", response=response(403)), ValueError, "hf auth login"),
    "unknown": (lambda: errors.RepositoryNotFoundError("a\nb", response=response(404)), FileNotFoundError, "spelling"),
    "revision": (lambda: errors.RevisionNotFoundError("a\nb", response=response(404)), FileNotFoundError, "'v9'"),
    "no network": (lambda: errors.LocalEntryNotFoundError("a\nb"), ConnectionError, "network"),
    "server": (lambda: errors.HfHubHTTPError("500 oh\nno", response=response(500)), ConnectionError, "500 oh"),
    "partial": (lambda: errors.IncompleteSnapshotError("a", snapshot_path="/gone"), FileNotFoundError, "partly"),
    "disk": (lambda: OSError(28, "No space left on device"), ConnectionError, "No space left"),
    "wordless": (lambda: TimeoutError(), ConnectionError, "TimeoutError"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_is_one_line(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, kind, expected = FAILURES[case]

    def fail(*_: Any, **__: Any) -> None:
        raise make()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert expected in line(kind, "owner/name", revision="v9")


# Offline: the real snapshot_download, with every socket blocked


@pytest.mark.parametrize("variable", [None, "ANYFORMER_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_opens_no_socket(
    variable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_sockets: None
) -> None:
    if variable:
        monkeypatch.setenv(variable, "1")
    assert "not in the cache" in line(FileNotFoundError, "owner/other", offline=not variable)
    snapshot = cached(tmp_path, "config.json")
    assert resolve("owner/name", offline=not variable) == snapshot
    assert resolve("owner/name", offline=not variable, revision=COMMIT) == snapshot
    assert "not in the cache" in line(FileNotFoundError, "owner/name", offline=not variable, revision="v9")


def test_sockets_are_really_blocked(no_sockets: None) -> None:
    """Without the flag, the call of the test above opens a socket."""
    with pytest.raises((AssertionError, ConnectionError), match="socket|network|fetch"):
        resolve("owner/name")


@pytest.mark.parametrize("value", ["0", "", "false"])
def test_variables_that_do_not_say_offline(value: str, monkeypatch: pytest.MonkeyPatch, calls: list[Any]) -> None:
    monkeypatch.setenv("ANYFORMER_OFFLINE", value)
    resolve("owner/name")
    assert calls[0]["local_files_only"] is False


@pytest.mark.parametrize("files, enough", [(["config.json"], True), (["spec.json"], True), (["vocab.txt"], False)])
def test_a_snapshot_that_another_program_fetched_in_part(
    files: list[str], enough: bool, tmp_path: Path, no_sockets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = cached(tmp_path, *files)

    def partial(*_: Any, **__: Any) -> None:
        raise errors.IncompleteSnapshotError("2 file(s) are missing", snapshot_path=str(snapshot))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", partial)
    if enough:
        assert resolve("owner/name", offline=True) == snapshot
    else:
        assert re.search("partly", line(FileNotFoundError, "owner/name", offline=True))
