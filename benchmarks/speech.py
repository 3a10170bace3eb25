"""Train the recipes of spoken digits on one machine: word error rates on strings of the official test recordings.

    python benchmarks/speech.py digits OUT [--data DIR] [--minutes 6]      Conformer with CTC
    python benchmarks/speech.py digits-seq2seq OUT [...]                   Conformer with a decoder
    python benchmarks/speech.py wav2vec OUT [--data DIR] [--minutes 7.5]   pretrained on audio or from scratch; 3 seeds
    python benchmarks/speech.py scratch OUT --steps 683 --steps 2500       only from scratch, once per --steps
    python benchmarks/speech.py score OUT                                  score the files in OUT with jiwer, and plot

`--minutes` limits the training time; training from scratch runs as many steps as the pretrained model had. Writes to
OUT: results.json, every transcript (*.jsonl, which `anyformer eval FILE RECIPE --metrics wer` also scores) and the loss
curves (curve-*.jsonl). Word errors are computed here, so that no package is needed; only `score` needs jiwer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ARMS = ("digits-wav2vec-tenth", "digits-scratch-tenth")
NAMES = {
    ARMS[0]: "pretrained on audio", ARMS[1]: "from scratch", "digits-wav2vec": "pretraining on audio",
    "digits-seq2seq": "Conformer and a decoder, all labels", "digits": "Conformer, all labels",
}  # fmt: skip


def errors(predicted: Sequence[str], wanted: Sequence[str]) -> float:
    """Word error rate: insertions, deletions and substitutions per word [Levenshtein 1966]."""
    wrong = total = 0
    for mine, right in ((a.split(), b.split()) for a, b in zip(predicted, wanted, strict=True)):
        row = list(range(len(right) + 1))
        for i, word in enumerate(mine, 1):
            before, row[0] = row[0], i
            for j, other in enumerate(right, 1):
                before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
        wrong, total = wrong + row[-1], total + len(right)
    return wrong / total


def note(path: Path, **values: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps(values) + "\n")


def learn(run: Any, folder: Path, seconds: float | None, curve: Path, device: str) -> Any:
    """Train the run for at most `seconds`; append losses and scores to the file `curve`."""
    import torch

    from anyformer.evaluate import Evaluation
    from anyformer.objectives.objective import Predictor
    from anyformer.train.deadline import Deadline
    from anyformer.train.start import setup
    from anyformer.train.trainer import Callback

    torch.set_float32_matmul_precision("high")

    class Watch(Callback):
        def on_step(self, trainer: Any, done: Any) -> None:
            if done.step % 50 == 0 or done.step == 1:
                note(curve, step=done.step, of=trainer.steps, seconds=round(trainer.seconds, 2), **done.terms)
            if done.step % 250 == 0 or done.step == 1:
                pace = f"{done.seconds:.3f} s per step"
                print(f"{run.name} {done.step}/{trainer.steps}: {done.loss:.3f}, {pace}", flush=True)

        def on_evaluate(self, trainer: Any, scores: dict[str, float]) -> None:
            valid = {f"valid_{name}": value for name, value in scores.items()}
            if "text" in run.objective.columns:
                answered = evaluate(run.data.valid, trainer.model, trainer.tokenizer).answered
                valid["valid_wer"] = errors(answered.predicted, answered.wanted)
            note(curve, step=trainer.step, seconds=round(trainer.seconds, 2), **valid)
            print(f"{run.name} {trainer.step}: {valid}", flush=True)

    def evaluate(source: Any, model: Any, tokenizer: Any) -> Any:
        evaluation, trains = Evaluation(source, run.objective.ready(tokenizer), tokenizer, ()), model.training
        evaluation.ask(Predictor(model.eval(), tokenizer, tokenizer.filler, size=256))
        model.train(trains)
        return evaluation

    watchers: list[Callback] = [Watch()]
    if seconds is not None:
        watchers.insert(0, Deadline(time.monotonic() + seconds, most=run.steps))
    tell, records = (lambda line: print(line, flush=True)), folder.parent / "data"  # runs share their prepared data
    trainer = setup(run, folder, device=device, callbacks=watchers, tell=tell, records=records)
    return trainer.fit(), evaluate


def transcribed(run: Any, out: Path, name: str, seconds: float | None, device: str) -> int:
    """Train, write the transcripts of the test strings and the word error rate; return the number of steps."""
    from anyformer.evaluate.predictions import prediction_rows, write_rows

    trainer, evaluate = learn(run, out / "runs" / name, seconds, out / f"curve-{name}.jsonl", device)
    found = evaluate(run.data.test, trainer.model, trainer.tokenizer)
    write_rows(out / f"{name}.jsonl", prediction_rows(found))
    wrong = errors(found.answered.predicted, found.answered.wanted)
    facts = {"steps": trainer.step, "seconds": round(trainer.seconds, 1), "strings": len(found.answered.wanted)}
    note(out / "results.jsonl", name=name, wer=wrong, parameters=size(trainer.model), **facts)
    print(f"{name}: {100 * wrong:.2f} % of the words of {facts['strings']} test strings are wrong", flush=True)
    return trainer.step


def size(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def described(name: str, options: argparse.Namespace, **changes: Any) -> Any:
    from anyformer.recipes import recipe
    from anyformer.specs.codec import override

    given = dict(pair.split("=", 1) for pair in options.set)
    given = {path: json.loads(value) for path, value in given.items()}
    run = override(recipe(name, options.data), {"evaluate.metrics": (), **changes})
    known = {path: value for path, value in given.items() if applies(run, path)}
    return override(run, known) if known else run


def applies(run: Any, path: str) -> bool:
    """Whether the run has a field at `path`: a run that starts from a pretrained model has no model description."""
    from anyformer.specs.addresses import value_at

    try:
        value_at(run, path)
    except (ValueError, AttributeError, KeyError):
        return False
    return True


def digits(options: argparse.Namespace) -> None:
    out, name = Path(options.out), options.what
    run = described(name, options, seed=options.seed)
    transcribed(run, out, name, 60 * options.minutes - 20, options.device)
    finish(out)


def one_seed(options: argparse.Namespace) -> None:
    """For one seed: pretrain on audio, fine-tune, then train from scratch for the number of fine-tuning steps."""
    out, seed, whole = Path(options.out), options.seed, 60 * options.minutes

    def folder(name: str) -> Path:
        return out / "runs" / f"{name}-{seed}"

    def ready(name: str, **changes: Any) -> Any:
        return described(name, options, seed=seed, **changes)

    for steps in options.steps:  # only from scratch
        name = f"{ARMS[1]}-{steps}-{seed}"
        transcribed(ready(ARMS[1], steps=steps), out, name, None, options.device)
    if options.steps:
        return
    first = ready("digits-wav2vec")
    learn(first, folder("digits-wav2vec"), 0.5 * whole, out / f"curve-digits-wav2vec-{seed}.jsonl", options.device)
    tuned = ready(ARMS[0], **{"model.path": str(folder("digits-wav2vec"))})
    steps = transcribed(tuned, out, f"{ARMS[0]}-{seed}", 0.2 * whole, options.device)
    transcribed(ready(ARMS[1], steps=steps), out, f"{ARMS[1]}-{seed}", None, options.device)


def wav2vec(options: argparse.Namespace) -> None:
    """Run one process per seed (and --steps) at the same time, because a small model leaves most of a GPU idle."""
    out = Path(options.out)
    command = [sys.executable, __file__, "seed", str(out), "--data", options.data, "--device", options.device]
    command += ["--minutes", str(options.minutes), *(word for pair in options.set for word in ("--set", pair))]
    each = [["--steps", str(steps)] for steps in options.steps] or [[]]
    several = [[*command, "--seed", str(seed), *more] for seed in range(options.seeds) for more in each]
    threads = {**os.environ, "OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // (len(several) + 1), 1))}
    failed = [process.wait() for process in [subprocess.Popen(one, env=threads) for one in several]]
    finish(out)
    if any(failed):
        sys.exit(f"seeds ended with {failed}")


def scratch(options: argparse.Namespace) -> None:
    if not options.steps:
        sys.exit("scratch needs --steps N: the number of steps of the model to compare with")
    wav2vec(options)


def finish(out: Path) -> None:
    """Write results.json from the lines of results.jsonl."""
    if not (out / "results.jsonl").is_file():
        return
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    found: dict[str, Any] = {"runs": sorted(rows, key=lambda row: row["name"])}
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row["name"].startswith(ARMS):
            groups.setdefault(row["name"].rpartition("-")[0], []).append(row["wer"])
    for name, rates in sorted(groups.items()):
        spread = statistics.stdev(rates) if len(rates) > 1 else 0.0
        found[name] = {"mean": statistics.mean(rates), "deviation": spread, "seeds": len(rates)}
    (out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found), flush=True)


def score(options: argparse.Namespace) -> None:
    import jiwer

    out = Path(options.out)
    for file in sorted(out.glob("digits*.jsonl")):
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        predicted, wanted = ([row[name] for row in rows] for name in ("predicted", "wanted"))
        theirs, ours = jiwer.wer(wanted, predicted), errors(predicted, wanted)
        print(f"{file.stem}: {100 * theirs:.2f} % by jiwer, {100 * ours:.2f} % here")
    draw(out)


def draw(out: Path) -> None:
    """Plot the training loss, and word error rates on strings held out from the training recordings."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    colours: dict[str, str] = {}
    for file in sorted(out.glob("curve-*.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        name = next(label for start, label in NAMES.items() if file.stem.removeprefix("curve-").startswith(start))
        label = None if name in colours else name
        colour = colours.setdefault(name, f"C{len(colours)}")
        for axis, kind, scale in ((axes[0], "loss", 1), (axes[1], "valid_wer", 100)):
            points = [(line["step"], scale * line[kind]) for line in lines if kind in line]
            if points:
                axis.plot(*zip(*points, strict=True), ".-", color=colour, label=label)
    for axis, title in zip(axes, ("loss per word", "word error rate, %"), strict=True):
        axis.set(xlabel="steps", ylabel=title, yscale="log")
        axis.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.savefig(out / "speech.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("digits", "digits-seq2seq", "wav2vec", "scratch", "seed", "score"))
    parser.add_argument("out")
    parser.add_argument("--data", default="data")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, action="append", default=[], help="steps of the training from scratch")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=JSON", help="for runs with this field")
    options = parser.parse_args()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    verbs = {"digits": digits, "digits-seq2seq": digits, "wav2vec": wav2vec, "scratch": scratch, "seed": one_seed,
             "score": score}  # fmt: skip
    verbs[options.what](options)


if __name__ == "__main__":
    main()
