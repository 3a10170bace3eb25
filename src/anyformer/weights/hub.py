"""Find the local folder of a model by its path or hub id. Models of the hub are downloaded once and cached."""

import difflib
import os
import re
from pathlib import Path

from anyformer.specs.messages import quote

# The files of a model, and nothing that can run: no pickles, no Python. Copies of the weights in a different
# layout (Mistral's `consolidated*`, folders such as `onnx/`) would only double the download.
WANTED = ["*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.tiktoken", "*.jinja"]
UNWANTED = ["consolidated*", "*/*.safetensors"]
# Subfolders of a model. The first download gets their configs, the second their weights.
INNER = ("vae", "transformer")
INNER_WEIGHTS = ["model*.safetensors", "diffusion_pytorch_model.safetensors", "diffusion_pytorch_model-*.safetensors"]
PICKLES = ["pytorch_model*.bin"]  # only on request

CHECKPOINTS = ("best", "last")  # names of a run's checkpoints: "runs/books@last"

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"(?:{_PART}/)?{_PART}")


def resolve(
    name_or_path: str | Path, *, offline: bool = False, revision: str | None = None, pickles: bool = False
) -> Path:
    """Return the local folder of a model. For a training run this is the best checkpoint by validation;
    "runs/books@last" is the newest. With `offline` (or ANYFORMER_OFFLINE=1, HF_HUB_OFFLINE=1) no connection is opened;
    `pickles` downloads pickled weights too."""
    if not isinstance(name_or_path, (str, Path)):
        raise ValueError(f"expected the folder or hub id of a model, got {type(name_or_path).__name__}")
    name = name_or_path.as_posix() if isinstance(name_or_path, Path) else name_or_path
    path, which = run_of(os.path.expanduser(name))
    if os.path.isdir(path):
        if revision is not None:
            reason = f"revision={quote(revision)} is only for models on the hub"
            raise ValueError(f"{reason}, but {quote(name, 1000)} is a local folder")
        if os.path.isfile(os.path.join(path, "run.json")):
            from anyformer.weights.manifest import model_folder

            return model_folder(Path(path), which)
        return Path(path)
    if os.path.exists(path):
        raise ValueError(f"{quote(name, 1000)} is a file: pass the folder of the model")
    if name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1 or "\\" in name:
        raise FileNotFoundError(no_such_folder(name))
    if not _HUB_ID.fullmatch(name) or "--" in name or ".." in name or name.endswith(".git"):
        raise ValueError(f"{quote(name, 1000)} is neither a folder nor a hub id such as 'openai-community/gpt2'")
    beside = "/" in name and bool(_folders(os.path.dirname(path)))  # then the name means a folder or a cached model
    wanted = WANTED + PICKLES if pickles else WANTED
    try:
        return _fetch(name, offline or beside or asked_offline(), revision, wanted)
    except FileNotFoundError:
        if beside:
            raise FileNotFoundError(no_such_folder(name)) from None
        raise


def in_cache(name: str) -> bool:
    """Whether a model is available without a network."""
    try:
        resolve(name, offline=True)
    except FileNotFoundError:
        return False
    return True


def no_such_folder(name: str) -> str:
    """Return the error message for a missing folder, with a similar folder or some of the existing ones."""
    home, _, last = os.path.normpath(os.path.expanduser(name)).rpartition("/")
    folders = _folders(home or ("/" if name.startswith("/") else "."))
    plain, bare = quote(name, 1000)[1:-1], name.rstrip("/")  # quote: control characters must not break the line
    prefix = bare[: -len(last)] if bare.endswith(last) else f"{home}/"
    close = difflib.get_close_matches(last, folders, n=1, cutoff=0.6)
    if close:
        return f"{plain}: no such folder; did you mean {prefix}{close[0]}?"
    listed = f"; {home} has {', '.join(folders[:5])}{', ...' if len(folders) > 5 else ''}"
    return f"{plain}: no such folder{listed if home and folders and not os.path.isabs(home) else ''}"


def _folders(path: str) -> list[str]:
    """Return the sorted names of the folders in a folder; [] if it cannot be read."""
    try:
        return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []


def run_of(name: str) -> tuple[str, str | None]:
    """Split a name into the folder of a run and the checkpoint: "runs/books@last" -> ("runs/books", "last")."""
    folder, _, which = name.rpartition("@")
    if which in CHECKPOINTS and not os.path.exists(name) and os.path.isfile(os.path.join(folder, "run.json")):
        return folder, which
    return name, None


def asked_offline() -> bool:
    """Whether an environment variable sets offline mode; huggingface_hub reads its variable only on import."""
    variables = ("ANYFORMER_OFFLINE", "HF_HUB_OFFLINE")
    return any(os.environ.get(variable, "").upper() in {"1", "ON", "YES", "TRUE"} for variable in variables)


def _has_description(folder: str) -> bool:
    files = ("spec.json", "config.json", "model_index.json")
    return any(os.path.isfile(os.path.join(folder, file)) for file in files)


def _fetch(name: str, offline: bool, revision: str | None, wanted: list[str]) -> Path:
    import huggingface_hub  # slow to import, and not needed for local folders
    from huggingface_hub import errors

    page = f"https://huggingface.co/{name}"

    def download(wanted: list[str], unwanted: list[str]) -> str:
        return huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=wanted, ignore_patterns=unwanted, local_files_only=offline
        )

    try:
        folder = download(wanted, UNWANTED)
        if inside := [inner for inner in INNER if _has_description(os.path.join(folder, inner))]:
            download([f"{inner}/{weights}" for inner in inside for weights in INNER_WEIGHTS], [])
    except errors.GatedRepoError:
        raise ValueError(f"{quote(name, 1000)} is gated: ask for access at {page}, then `hf auth login`") from None
    except errors.RepositoryNotFoundError:
        hint = "check the spelling, or `hf auth login` if it is private"
        raise FileNotFoundError(f"no folder and no hub model is called {quote(name, 1000)}: {hint}") from None
    except errors.RevisionNotFoundError:
        raise FileNotFoundError(f"{quote(name, 1000)} has no revision {quote(revision)}: see {page}/commits") from None
    except errors.LocalEntryNotFoundError as error:
        # From 2.0 on, the error of huggingface_hub has the folder of a partial download. It may contain enough files;
        # if not, reading it raises an error that names the missing file.
        folder = str(getattr(error, "snapshot_path", ""))
        if folder and not _has_description(folder):
            raise FileNotFoundError(f"{quote(name, 1000)} is only partly in the cache: fetch it once online") from None
        if not folder and offline:
            raise FileNotFoundError(f"{quote(name, 1000)} is not in the cache: fetch it once without offline") from None
        if not folder:
            raise ConnectionError(
                f"{quote(name, 1000)} is not in the cache and the hub cannot be reached: check the network"
            ) from None
    except Exception as error:  # network, server or disk errors of many classes
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConnectionError(f"cannot fetch {quote(name, 1000)} from the hub ({reason}): try again later") from None
    return Path(folder)
