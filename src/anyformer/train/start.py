"""Set up a trainer from the description of a run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from anyformer._version import __version__
from anyformer.checkpoint import check_free, copy_tokenizer, load, load_with_head, read_spec, with_new_head
from anyformer.data import Data, DataSplit, Loader, Plan, Splits, prepare, texts_of, tokenizer_digest
from anyformer.data.lock import FolderLock
from anyformer.data.prepare import length_limit
from anyformer.data.unused import describe_unused
from anyformer.evaluate import Evaluation, check
from anyformer.evaluate.during_training import training_metrics
from anyformer.inputs.tokenizer import Tokenizer, check_vocabulary_size
from anyformer.kernels import hardware
from anyformer.models import Model, Tower, TransformerModule
from anyformer.models.construct import build, skeleton
from anyformer.objectives.objective import Objective
from anyformer.parts.base import HasVocabulary, child
from anyformer.parts.diffusion import NoisyEmbedding
from anyformer.parts.embedding.text import TextEmbedding
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pooling import LastToken
from anyformer.specs.codec import override, to_json
from anyformer.specs.part import Table, walk
from anyformer.train import parallel, record
from anyformer.train.batch_memory import check_batch
from anyformer.train.data_summary import class_counts, describe_data, tokens_per_number
from anyformer.train.learning_plan import LearningPlan, Phase, row_length
from anyformer.train.progress import format_epochs
from anyformer.train.run import Pretrained, Run, differences, read_run
from anyformer.train.trainer import PROGRESS_INTERVAL, Callback, Trainer
from anyformer.transforms import lora
from anyformer.transforms.freeze import freeze
from anyformer.weights import hub, manifest
from anyformer.weights.io import read_json, write_json

Tell = Callable[[str], object]


def train(
    run: Run,
    folder: str | Path,
    *,
    resume: bool = False,
    device: str | torch.device | None = "auto",
    callbacks: Iterable[Callback] = (),
    tell: Tell = lambda line: None,
) -> Trainer:
    """Train a run in a folder; with `resume`, continue from its newest checkpoint."""
    return setup(run, folder, resume=resume, device=device, callbacks=callbacks, tell=tell).fit()


def setup(
    run: Run,
    folder: str | Path,
    *,
    resume: bool = False,
    device: str | torch.device | None = "auto",
    callbacks: Iterable[Callback] = (),
    tell: Tell = lambda line: None,
    records: Path | None = None,
) -> Trainer:
    """Prepare the folder, the vocabulary, the data and the model, and return the trainer. `records` is the folder of
    the prepared data (default: `folder`/data); runs on the same data can share it."""
    folder = Path(folder)
    records = records or folder / "data"
    layout = parallel.Layout(run.mesh, parallel.start(device))
    check(run.objective, run.evaluate.metrics)
    check_device(run, layout.device)
    with claim_folder(run, folder, resume) as (fresh, lock):
        run = fast_precision(run, layout.device, tell)
        tokenizer = vocabulary(run, folder, tell)
        run = fit_vocabulary(run, tokenizer, tell)
        model = make_model(run, tokenizer)
        if run.lora is not None:
            lora.apply(model, run.lora, seed=run.seed)
        freeze(model, *run.freeze)
        objective = run.objective.ready(tokenizer)
        if tokenizer is None and "text" in objective.columns:
            fix = 'set one: vocabulary={"kind": "TrainedBPE", "size": 8192}'
            raise ValueError(f"{type(objective).__name__} reads text, but this run has no vocabulary; {fix}")
        length = length_limit(model.spec, run.batch.length, run.objective)
        with progress_line(tell, "preparing the data") as progress:
            splits = prepare(run.data, objective, tokenizer, records, length, progress)
            parallel.broadcast_result(splits.verify)
        parallel.broadcast_result(lambda: splits.write_rows(folder / "splits.csv"))
        objective = objective.with_class_counts(class_counts(splits.train, labels_of(objective)))

        def prepare_short(objective: Objective, length: int) -> DataSplit:
            part = Data(train=run.data.splits["train"], unfit=run.data.unfit)
            short = prepare(part, objective, tokenizer, records, length)
            parallel.broadcast_result(short.verify)
            return short.train

        plan = LearningPlan(run, objective, splits.train, length, prepare_short)
        rate = tokens_per_number(model.spec, objective, splits.train)
        for line in filter(None, (*splits.report(), describe_unused(run.data.splits["train"], objective))):
            tell(line)
        tell(describe_data(splits, labels_of(objective), rate))
        if epochs := plan.epochs(run.steps):
            tell(f"epochs in {run.steps:,} steps: {format_epochs(epochs)}")
        choose_input_files(model, objective, tokenizer, folder / "inputs")
        feed, valid = loaders(run, plan, objective, tokenizer, splits.valid, length, layout, rate)
        trainer = Trainer(
            run,
            folder,
            model=model,
            objective=objective,
            feed=feed,
            valid=valid,
            tokenizer=tokenizer,
            identity=identity(model, tokenizer, splits, plan),
            layout=layout,
            callbacks=callbacks,
            metrics=metrics_of(run, objective, tokenizer, splits.valid),
        )
        trainer.splits, trainer.fresh, trainer.lock, trainer.epochs = splits, fresh, lock, plan.epochs
        for phase in plan.phases if parallel.world_size() == 1 else ():
            check_batch(trainer, Loader(phase.sample, phase.objective, pad=filler(tokenizer), rate=rate))
        return trainer


def metrics_of(run: Run, objective: Objective, tokenizer: Tokenizer | None, split: DataSplit | None) -> Any:
    """Return the `metrics` argument of a Trainer that computes `evaluate.metrics`; None if there are none."""
    valid, limit, examples = run.data.splits.get("valid"), run.evaluate.batches, run.batch.examples
    if not run.evaluate.metrics or valid is None:
        return None
    most, skip = None if limit is None or examples is None else limit * examples, run.data.unfit == "skip"
    names = run.evaluate.metrics
    evaluation = Evaluation(valid, objective, tokenizer, names, split=split, most=most, skip=skip)
    return training_metrics(evaluation, filler(tokenizer), run.evaluate.num_beams, limit)


def loaders(
    run: Run,
    plan: LearningPlan,
    objective: Objective,
    tokenizer: Tokenizer | None,
    held_out: DataSplit | None,
    length: int | None,
    layout: parallel.Layout,
    rate: float,
) -> tuple[Callable[[int], Any], Callable[[], Loader] | None]:
    """Return a function that loads the training batches from a step on, and one for validation (None without data)."""
    process = {"rank": layout.data_rank, "world_size": layout.data_size}
    options: dict[str, Any] = {**process, "micro": run.batch.micro, "pad": filler(tokenizer), "rate": rate}

    def phase_loader(phase: Phase, start: int) -> Loader:
        return Loader(phase.plan, phase.objective, start_step=start, stop_step=phase.stop, **options)

    def valid() -> Loader:
        assert held_out is not None
        batch = {"examples": run.batch.examples, "tokens": run.batch.tokens}
        row = row_length(objective, length)
        once = Plan(held_out, seed=run.seed, packs=objective.packs, once=True, length=row, **batch)
        return Loader(once, objective, **options)

    return lambda step: plan.feed(step, phase_loader), None if held_out is None else valid


def identity(
    model: TransformerModule, tokenizer: Tokenizer | None, splits: Splits, plan: LearningPlan
) -> dict[str, str]:
    """Return digests that must not change between a run and its resumption."""
    same = {
        "data": splits.digest,
        "tokenizer": tokenizer_digest(tokenizer),
        "model description": hashlib.sha256(to_json(model.spec).encode()).hexdigest(),
    }
    return same if len(plan.phases) == 1 else {**same, "first data": plan.phases[0].split.digest}


# -- the folder -------------------------------------------------------------------------------------------------------


def check_device(run: Run, device: torch.device) -> None:
    """Raise ValueError if this machine cannot compile the model or capture its steps in CUDA graphs."""
    if run.compile and not hardware.has("compiler"):
        raise ValueError(f"compile=true: {hardware.NO_COMPILER}")
    if run.record:
        why = record.refusal(run.objective, device, run.precision, parallel.world_size(), run.batch.micro)
        if why is not None:
            raise ValueError(f"record=true: {why}")


def fast_precision(run: Run, device: torch.device, tell: Tell) -> Run:
    """Return the run in fp32 if this CPU has no bf16 instructions: bf16 would be 4 to 60 times slower."""
    if device.type != "cpu" or not run.precision.startswith("bf16") or hardware.has("bf16"):
        return run
    tell(f"precision={run.precision}: this CPU has no bf16 instructions, so the run computes in fp32")
    return override(run, {"precision": "fp32"})


@contextlib.contextmanager
def claim_folder(run: Run, folder: Path, resume: bool) -> Iterator[tuple[bool, FolderLock]]:
    """Lock the folder so that no other run trains in it. Yields whether the folder had no run before, and the lock.
    If an error is raised in a new folder, run.json and the tokenizer are deleted, so that the folder is free again."""
    fresh, lock = False, FolderLock(folder)  # rank 0 locks it for all processes
    try:
        fresh = parallel.broadcast_result(lambda: prepare_folder(run, folder, resume, lock))
        yield fresh, lock
    except BaseException:
        if fresh and parallel.rank() == 0:
            (folder / "run.json").unlink(missing_ok=True)
            shutil.rmtree(folder / "tokenizer", ignore_errors=True)  # `prepare_folder` found none
        lock.release()
        raise


def prepare_folder(run: Run, folder: Path, resume: bool, lock: FolderLock) -> bool:
    """Create the run's folder, or check that it belongs to this run. Returns whether it had no run before."""
    path = folder / "run.json"
    check_free(folder, "--out DIR names one", marks=("run.json", "environment.json", ".lock"))
    begun, again = path.is_file(), parallel.restart_count() > 0  # after a restart, torchrun repeats the first command
    if begun and manifest.steps(folder) and not resume and not again:
        raise ValueError(f"{folder} already has a run: --resume continues it, --out DIR starts another")
    if resume and not begun and not again:
        lack = "has no run" if folder.exists() else "does not exist"
        raise ValueError(f"{folder} {lack}: nothing to resume; start a run there without --resume")
    folder.mkdir(parents=True, exist_ok=True)
    lock.acquire()
    if begun and not resume and not again:  # it ended before its first checkpoint: start over
        shutil.rmtree(folder / "tokenizer", ignore_errors=True)
        begun = False
    if not begun and run.vocabulary is not None and (folder / "tokenizer").exists():
        raise ValueError(
            f"{folder / 'tokenizer'} already exists, but not from a run in this folder: give another --out DIR"
        )
    if begun:
        changed = differences(read_run(path), run)
        if changed:
            more = f" (and {len(changed) - 3} more)" if len(changed) > 3 else ""
            raise ValueError(f"{folder} has a different run: {'; '.join(changed[:3])}{more}; choose another --out DIR")
        return False
    write_json(folder / "environment.json", environment(run))
    temporary = folder / ".run.json.tmp"
    temporary.write_text(to_json(run) + "\n")
    os.replace(temporary, path)  # from now on the folder belongs to the run
    return True


def environment(run: Run) -> dict[str, Any]:
    """Versions, machine and command of this run; unknown values are left out."""
    commit = None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        here = Path(__file__).resolve().parent
        git = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"]
        commit = subprocess.run(git, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    names = ("numpy", "tokenizers", "safetensors")
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in names}
    values = {
        "anyformer": __version__,
        "commit": commit,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **versions,
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": parallel.world_size(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "seed": run.seed,
        "command": sys.argv,
    }
    return {name: value for name, value in values.items() if value is not None}


# -- vocabulary and model ---------------------------------------------------------------------------------------------


def vocabulary(run: Run, folder: Path, tell: Tell) -> Tokenizer | None:
    """Return the run's tokenizer: the one in this folder, a newly trained one, or the pretrained model's."""
    target = folder / "tokenizer"
    if run.vocabulary is not None:
        with FileLock(folder / ".vocabulary.lock"):  # the first process to get the lock trains it
            if (target / "tokenizer_config.json").is_file():  # written last
                return Tokenizer.load(target)
            with progress_line(tell, "training the vocabulary"):
                return run.vocabulary.make(texts_of(run.data.splits["train"], run.objective.texts), target)
    if isinstance(run.model, Pretrained):
        source = hub.resolve(run.model.path)
        with contextlib.suppress(FileNotFoundError):
            return Tokenizer.load(source)
    return None


def filler(tokenizer: Tokenizer | None) -> int:
    """Return the id of the padding token."""
    return 0 if tokenizer is None else tokenizer.filler


def choose_input_files(
    model: TransformerModule, objective: Objective, tokenizer: Tokenizer | None, folder: Path
) -> None:
    """Set `model.folder`, whose files are copied to every checkpoint: the tokenizer's folder, or `folder` if the run
    changes how inputs are read."""
    if tokenizer is not None and tokenizer.folder is not None:
        model.folder = tokenizer.folder
    settings = {} if tokenizer is None else tokenizer_settings(model, objective, tokenizer)
    written = parallel.broadcast_result(lambda: write_input_files(model, objective, folder, settings))
    model.folder = written or model.folder


def tokenizer_settings(model: TransformerModule, objective: Objective, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return tokenizer settings that encode texts as in training: the truncation length, and token types for pairs."""
    settings = objective.tokenizer_settings(tokenizer)
    if objective.truncates is not None and objective.truncates != tokenizer.max_length:
        settings["model_max_length"] = objective.truncates
    embedding = model.spec.embedding
    segments = embedding.num_segments if isinstance(embedding, TextEmbedding) else 0
    if segments > 1 and "token_type_ids" not in tokenizer.input_names:
        settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return settings


def write_input_files(
    model: TransformerModule, objective: Objective, folder: Path, settings: Mapping[str, Any]
) -> Path | None:
    """Write the objective's input settings and the tokenizer's files to `folder` and return it; `settings` go into
    tokenizer_config.json. Returns None if the tokenizer's files need no change."""
    if objective.write_settings(folder) is None and not settings:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(model, folder)
    if settings:
        path = folder / "tokenizer_config.json"
        write_json(path, {**(read_json(path) if path.is_file() else {}), **settings})
    objective.write_settings(folder)  # again: copy_tokenizer may have overwritten them
    return folder


def check_suits(run: Run) -> None:
    """Raise ValueError if the objective cannot train the described model. Runs with a second model (a teacher) or a
    pretrained model are checked when they start."""
    if isinstance(run.model, Model) and not run.objective.second_model:
        run.objective.module(skeleton(run.model))


def make_model(run: Run, tokenizer: Tokenizer | None) -> Any:
    labels = labels_of(run.objective)
    if isinstance(run.model, Pretrained):
        model = load_pretrained(run.model, run.seed, labels, None if tokenizer is None else tokenizer.filler)
        if run.vocabulary is not None:  # the folder of the weights has no tokenizer
            model.spec = with_special_tokens(model.spec, tokenizer)
    else:
        model = build(with_special_tokens(run.model, tokenizer), seed=run.seed)
        run.objective.initialize(model)
    name_labels(model, labels)
    problem = run.objective.problem
    if isinstance(model.spec.head, ClassifyHead) and problem in ("regression", "multi_label_classification"):
        model.spec, model.head.problem = override(model.spec, {"head.problem": problem}), problem
    for part in (part for _, part in walk(run.objective) if isinstance(part, Objective)):
        model.spec = model.spec.replace(source=Table({**model.spec.source, **part.source_fields}))
    check_vocabulary_size(model, tokenizer)
    if isinstance(run.model, Pretrained) and run.vocabulary is not None:
        with contextlib.suppress(FileNotFoundError):
            if tokenizer_digest(Tokenizer.load(hub.resolve(run.model.path))) != tokenizer_digest(tokenizer):
                raise ValueError(
                    f"vocabulary: the weights of {run.model.path} were trained with a different one; leave it out"
                )
    return model


def labels_of(objective: Objective) -> tuple[str, ...]:
    """Return the labels of this objective, or of the objective inside it."""
    return next((part.labels for _, part in walk(objective) if isinstance(part, Objective) and part.labels), ())


def fit_vocabulary(run: Run, tokenizer: Tokenizer | None, tell: Tell) -> Run:
    """Return the run with token tables that fit the vocabulary: if their size is not `vocabulary.size`, each table gets
    one row per token of the vocabulary that was built.

    Nothing changes if the size of the vocabulary cannot be chosen, if the tables have pretrained weights, or if the
    description names token ids (placeholders of towers)."""
    if tokenizer is None or run.vocabulary is None or run.vocabulary.size is None or isinstance(run.model, Pretrained):
        return run
    if any(isinstance(part, Tower) for _, part in walk(run.model)):
        return run
    objectives = (part for _, part in walk(run.objective) if isinstance(part, Objective))
    extra = max(part.extra_tokens for part in objectives)
    tables = {path: part for path, part in walk(run.model) if isinstance(part, HasVocabulary)}
    own = {path for path, part in tables.items() if isinstance(part, LMHead) and part.own_vocabulary}
    sizes = {path: part.vocab_size for path, part in tables.items() if path not in own}
    if {*sizes.values()} <= {run.vocabulary.size + extra}:
        return run
    described, size = " and ".join(f"{each:,}" for each in sorted({*sizes.values()})), len(tokenizer) + extra
    tell(f"the model's vocabulary has {size:,} tokens, as many as were found in the texts (described: {described})")
    return run.replace(model=override(run.model, {f"{path}.vocab_size": size for path in sizes}))


def with_special_tokens(spec: Model, tokenizer: Tokenizer | None) -> Model:
    """Return the description with the special tokens of the tokenizer."""
    if tokenizer is None:
        return spec
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    source = {name: value for name, value in spec.source.items() if name not in names}
    known = {name: getattr(tokenizer, name) for name in names}
    if known["pad_token_id"] is None:  # bos and eos are replaced even if the tokenizer has no such token
        del known["pad_token_id"]
    return override(spec, {"source": Table({**source, **known})})


def load_pretrained(part: Pretrained, seed: int, labels: tuple[str, ...] = (), pad: int | None = None) -> Any:
    """Load a pretrained model in fp32. If `part.architecture` is set, the model gets that head of its family. The
    labels are `part.labels`, otherwise `labels`. `pad` is used if the config has no padding token, which a head that
    pools the last token needs (GPT-2)."""
    folder = hub.resolve(part.path)
    if part.architecture is None and not part.labels:
        return load(folder, dtype=torch.float32)
    old = read_spec(folder)
    changed = part.labels or part.architecture not in (None, old.architecture)
    spec = with_new_head(old, part.architecture or old.architecture, (part.labels or labels) if changed else ())
    for path, inner in walk(spec.head, "head"):
        if isinstance(inner, LastToken) and inner.padding_token is None and pad is not None:
            spec = override(spec, {f"{path}.padding_token": pad})
    model, _ = load_with_head(spec, folder, dtype=torch.float32, seed=seed)
    if part.labels and not model.fresh and old.labels:  # a trained head: each row keeps its label
        model.spec = model.spec.with_labels(old.labels)
        name_labels(model, part.labels)
    return model


@torch.no_grad()
def name_labels(model: TransformerModule, labels: tuple[str, ...]) -> None:
    """Give the model the objective's labels. If it has the same labels in a different order, the rows of its head
    are reordered, so that each label keeps its learned weights."""
    known, out = model.spec.labels, child(model.head, "out")
    embedding = model.spec.embedding
    conditions = embedding.condition.num_labels if isinstance(embedding, NoisyEmbedding) else None
    if not known and conditions == len(labels):  # a model conditioned on labels
        model.spec = model.spec.with_labels(labels)
    if not labels or not isinstance(out, torch.nn.Linear) or out.out_features != len(labels):
        return  # the objective reports a wrong number of labels
    if known and {*known} != {*labels}:
        raise ValueError(f"objective.labels: {', '.join(labels)}; the model has other labels: {', '.join(known)}")
    if known and known != labels:
        rows = torch.tensor([known.index(label) for label in labels], device=model.device)
        for parameter in out.parameters():
            parameter.copy_(parameter[rows].clone())
    model.spec = model.spec.with_labels(labels)


@contextlib.contextmanager
def progress_line(tell: Tell, message: str, every: float = PROGRESS_INTERVAL) -> Iterator[Callable[[str, int], object]]:
    """Show a spinner on a terminal; if stderr is not a terminal, report a line every `every` seconds."""
    if not sys.stderr.isatty():
        last = time.monotonic()

        def line(name: str, count: int) -> None:
            nonlocal last
            if time.monotonic() - last > every:
                last = time.monotonic()
                tell(f"{message}: {name}, {count:,} examples")

        yield line
        return
    from rich.console import Console

    with Console(stderr=True).status(message) as status:
        yield lambda name, count: status.update(f"{message}: {name}, {count:,} examples")
