"""The report of a run: its loss curve as an image, and a self-contained report.html."""

from __future__ import annotations

import base64
import html
import io
import itertools
import json
from pathlib import Path
from typing import Any

from anyformer.train.baseline import MEAN
from anyformer.train.progress import read_metrics
from anyformer.weights.io import read_json
from anyformer.weights.manifest import best_steps

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td { padding: .15rem 1.5rem .15rem 0; vertical-align: top; }
table.grid { display: block; overflow-x: auto; }
table.grid th, table.grid td { padding: .15rem .7rem .15rem 0; border-bottom: 1px solid #ddd; text-align: left; }
pre { background: #f6f6f4; padding: .7rem; overflow-x: auto; white-space: pre-wrap; border-radius: .3rem; }
img { display: block; max-width: 100%; margin: 1rem 0; } summary { cursor: pointer; }
"""


def report(folder: Path, baselines: dict[str, float] | None = None) -> list[Path]:
    """Write report.html, and curve.png if matplotlib is installed, into a run's folder. Returns the paths."""
    lines = read_metrics(folder)
    picture = curve(lines, baselines or {})
    written = []
    if picture is not None:
        written.append(folder / "curve.png")
        written[-1].write_bytes(picture)
    written.append(folder / "report.html")
    written[-1].write_text(page(folder, lines, picture, baselines or {}), "utf-8")
    return written


def result(folder: Path, lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the evaluation of the run's model, which is the best or the last checkpoint; None if there is none."""
    valid = {line["step"]: line for line in lines if "valid/loss" in line}
    best = next((step for step in best_steps(folder) if step in valid), None)
    return valid[best] if best is not None else next(reversed(valid.values()), None)


def best_by(folder: Path) -> str:
    """Return the score that selects the run's model: "loss" or a metric."""
    return read_json(folder / "run.json").get("evaluate", {}).get("best", "loss")


def compare_with_baselines(loss: float, baselines: dict[str, float]) -> str:
    """Say whether a validation loss is below all baselines."""
    listed = ", ".join(f"{name} {value:.3f}" for name, value in baselines.items())
    above = [f"{name} {value:.3f}" for name, value in baselines.items() if not loss < value]
    return f"does not beat the baseline {' and '.join(above)}" if above else f"beats the baselines ({listed})"


def outcome(folder: Path, baselines: dict[str, float]) -> list[str]:
    """Return the last lines of a run's log: the step of its model, the score that selected it, its loss, and whether
    the loss beats the baselines."""
    lines = read_metrics(folder)
    best = result(folder, lines)
    if best is None:
        return []
    last, loss = max(line["step"] for line in lines), best["valid/loss"]
    verdict = f", which {compare_with_baselines(loss, baselines)}" if baselines else ""
    if not best_steps(folder):
        return [f"validation loss {loss:.3f} after step {best['step']:,}{verdict}"]
    score = best_by(folder)
    chosen = "" if score == "loss" else f"{score} {best[f'valid/{score}']:.4g}, "
    messages = [f"best validation: step {best['step']:,}, {chosen}loss {loss:.3f}{verdict}"]
    if best["step"] != last:
        messages.append(f"{folder} is the model of step {best['step']:,}; {folder}@last is the model of step {last:,}")
    return messages


def curve(lines: list[dict[str, Any]], baselines: dict[str, float]) -> bytes | None:
    """Plot the losses by step as a PNG; None if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(8, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    steps = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    if steps:
        axes.plot(*zip(*steps), color="#b8c4d8", linewidth=0.7)
        axes.plot(*zip(*smooth(steps)), color="#2f5c9e", label="training")
    valid = [(line["step"], line["valid/loss"]) for line in lines if "valid/loss" in line]
    if valid:
        axes.plot(*zip(*valid), color="#c2552d", marker="o", label="validation")
    for name, value in baselines.items():
        axes.axhline(value, color="#777777", linestyle=":", linewidth=1)
        place: Any = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        axes.annotate(name, (1, value), color="#555555", fontsize=8, **place)
    axes.set(xlabel="step", ylabel="loss (nats)" if baselines.keys() - {MEAN} else "loss")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if steps or valid:
        axes.legend(frameon=False)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def smooth(points: list[tuple[int, float]], share: float = 0.05) -> list[tuple[int, float]]:
    """Centered moving average over `share` of the points: it starts and ends at the data and does not lag."""
    sums, last = [0.0, *itertools.accumulate(value for _, value in points)], len(points) - 1
    out = []
    for i, (step, _) in enumerate(points):
        side = min(i, last - i, int(len(points) * share / 2))
        out.append((step, (sums[i + side + 1] - sums[i - side]) / (2 * side + 1)))
    return out


def page(folder: Path, lines: list[dict[str, Any]], picture: bytes | None, baselines: dict[str, float]) -> str:
    run, environment = read_json(folder / "run.json"), read_json(folder / "environment.json")
    steps = [line for line in lines if "loss" in line]
    valid = [line for line in lines if "valid/loss" in line]
    best = result(folder, lines)
    rows: list[tuple[str, str]] = []
    if steps:
        last = steps[-1]
        rows += [("steps", f"{last['step']:,}"), ("tokens seen", f"{last['tokens']:,}")]
        rows += [("time in steps", f"{last['seconds']:,.0f} s"), ("last training loss", f"{last['loss']:.4f}")]
    if best is not None:
        why = f", the best by {best_by(folder)}" if best_steps(folder) else ""
        rows += [("model of step", f"{best['step']:,}{why}"), ("validation loss", f"{best['valid/loss']:.4f}")]
        rows += [(name, f"{value:.4g}") for name, value in best.items() if name not in ("step", "valid/loss")]
        if best is not valid[-1]:
            rows += [("last validation loss", f"{valid[-1]['valid/loss']:.4f}")]
    rows += [(f"{name} baseline", f"{value:.4f}") for name, value in baselines.items()]
    if best is not None and baselines:
        rows += [("result", f"the model {compare_with_baselines(best['valid/loss'], baselines)}")]
    names = ("seed", "anyformer", "torch", "cores", "gpu", "commit")
    rows += [(name, str(environment[name])) for name in names if name in environment]
    samples = [line for line in lines if "text" in line]
    image = ""
    if picture is not None:
        image = f'<img alt="losses by step" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'
    texts = "".join(f"<h2>Written after step {s['step']:,}</h2><pre>{html.escape(s['text'])}</pre>" for s in samples)
    table = "".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>" for name, value in rows)
    title = html.escape(str(run.get("name", folder.name)))
    described = html.escape(json.dumps(run, indent=1))
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{STYLE}</style></head><body>'
        f"<h1>{title}</h1><table>{table}</table>{image}<!-- evaluation --><!-- end of evaluation -->{texts}"
        f"<h2>Description</h2><details><summary>run.json</summary><pre>{described}</pre></details></body></html>\n"
    )
