"""Draw docs/pictures/layers.svg: the layers of the contract in pyproject.toml, and every import between them.

    python docs/pictures/layers.py

An arc on the right of the boxes goes from a layer down to a layer that it imports. If a layer imported a higher one,
`make lint` and this script would fail.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
WIDE, HIGH, GAP, LEFT, TOP = 330, 26, 8, 20, 20
ABOUT = {
    "cli": "one file per command", "lab": "experiments", "planning": "scaling laws, memory and time of runs",
    "tasks": "ready-made tasks and trainings", "train": "trainer, optimisers, checkpoints, parallelism",
    "evaluate": "metrics", "data": "sources, shards, loaders", "objectives": "losses and their batches",
    "drawing": "pictures of descriptions", "generation": "text generation; inspection of models",
    "counting": "parameters, FLOPs, memory", "inputs": "images, audio, text; changes of models",
    "checkpoint": "load and save", "families": "published configs and weights", "weights": "names and files of weights",
    "models": "decoder, encoder, encoder-decoder, ...", "stacks": "sublayer, block, stack",
    "parts": "attention, norms, positions, heads, ...", "runtime": "context, state, masks",
    "kernels": "fast functions; hardware", "specs": "frozen descriptions of Parts",
}  # fmt: skip


def main() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
    level = {name: i for i, names in enumerate(layers) for name in names}
    graph = grimp.build_graph("anyformer", exclude_type_checking_imports=False)
    arcs: dict[tuple[int, int], int] = {}
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            ends = [level.get(name.split(".")[1]) if "." in name else None for name in (importer, imported)]
            if None not in ends and ends[0] != ends[1]:
                assert ends[0] < ends[1], f"{importer} imports {imported}, which is in a higher layer"
                arcs[ends[0], ends[1]] = arcs.get((ends[0], ends[1]), 0) + 1
    step = HIGH + GAP
    height, width = TOP * 2 + step * len(layers), LEFT + WIDE + 10 * len(layers)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for (above, below), count in sorted(arcs.items()):
        top, bottom = (TOP + i * step + HIGH / 2 for i in (above, below))
        reach, edge = LEFT + WIDE + 10 + 12 * (below - above), LEFT + WIDE
        lines.append(
            f'<path d="M{edge} {top:.0f} C{reach} {top:.0f} {reach} {bottom:.0f} {edge} {bottom:.0f}" fill="none" '
            f'stroke="#2f5c9e" stroke-opacity="0.35" stroke-width="{min(0.6 + count / 12, 5):.1f}"/>'
        )
    for i, names in enumerate(layers):
        y = TOP + i * step
        about = next((ABOUT[name] for name in names if name in ABOUT), "")
        lines += [
            f'<rect x="{LEFT}" y="{y}" width="{WIDE}" height="{HIGH}" rx="4" fill="#eef3fa" stroke="#2f5c9e"/>',
            f'<text x="{LEFT + 8}" y="{y + 17}"><tspan font-weight="bold">{" · ".join(names)}</tspan></text>',
            f'<text x="{LEFT + WIDE - 8}" y="{y + 17}" text-anchor="end" fill="#555" font-size="10">{about}</text>',
        ]
    (ROOT / "docs/pictures/layers.svg").write_text("\n".join([*lines, "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
