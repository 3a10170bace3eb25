"""Compare the returns that a Decision Transformer (recipe `cartpole`) reaches with the requested returns, and with
behaviour cloning: the same model trained without returns.

    anyformer train cartpole --data data
    anyformer train cartpole --data data --set objective.asks=false --out runs/cloned
    python benchmarks/cartpole.py runs/cartpole [--cloned runs/cloned] [--out cartpole.json] [--plot cartpole.svg]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import anyformer as af

ASKED = (20, 60, 100, 150, 200, 250, 300, 350, 400, 450, 500)
SCALE = 500.0  # as in the recipe


def reached(model: str, asked: tuple[float, ...], episodes: int, **options: Any) -> dict[float, list[float]]:
    """Return {requested return: return of each episode}."""
    rows = af.tasks.play(model, "CartPole-v1", returns=asked, episodes=episodes, seed=1000, **options)
    return {each: [row["return"] for row in rows if row["asked"] == each] for each in asked}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--cloned")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--out")
    parser.add_argument("--plot")
    options = parser.parse_args()
    found = reached(options.run, ASKED, options.episodes, scale=SCALE)
    pairs = np.asarray([(asked, each) for asked, episodes in found.items() for each in episodes])
    means = {asked: float(np.mean(episodes)) for asked, episodes in found.items()}
    figures: dict[str, Any] = {"asked and reached": means, "correlation": float(np.corrcoef(pairs.T)[0, 1])}
    if options.cloned:  # trained without returns: an infinite scale makes all returns 0
        for steps in (20, 1):
            cloned = reached(options.cloned, (500,), options.episodes, scale=float("inf"), steps=steps)
            figures[f"cloned, {steps} steps seen"] = float(np.mean(cloned[500]))
    print(json.dumps(figures, indent=1))
    if options.out:
        Path(options.out).write_text(json.dumps(figures, indent=1))
    if options.plot:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(5, 4), layout="constrained")
        axes.plot((0, 500), (0, 500), color="grey", linewidth=0.8, label="requested")
        axes.scatter(*pairs.T, s=10, alpha=0.5, label="one episode")
        axes.plot(list(means), list(means.values()), "o-", label="mean")
        axes.set(xlabel="requested return", ylabel="achieved return")
        axes.legend(frameon=False)
        figure.savefig(options.plot)


if __name__ == "__main__":
    main()
