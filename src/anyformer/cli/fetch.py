"""Fetch the data of a recipe into data/ (or --data DIR): public data from the Hugging Face hub (`datasets`) or the web;
episodes, speech, drawings, texts and conversations are generated here, without a network. Without RECIPE, list the data
of each recipe and its origin. Existing files are kept. A published model that the recipe begins with goes to the hub's
cache, so that training needs no network. `fetch demo` gets a published model for the course."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

DEMO = "demo"  # a folder of published models that no recipe reads


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("recipe", metavar="RECIPE", nargs="?", help="a recipe, or demo; without it, list all")
    add("--data", metavar="DIR", default="data", help="folder of the data sets (default: data/)")
    add("--seed", type=int, help="seed of generated data (default: 0)")
    add("--offline", action="store_true", help="do not use the network; read only the cache")


def run(options: argparse.Namespace) -> None:
    from anyformer.cli.terminal import progress, table
    from anyformer.recipes import recipes
    from anyformer.recipes.shared.sources import fetch, folders_of, models_of, origin_of, runs_of
    from anyformer.weights import hub

    if options.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read by huggingface_hub and datasets when they are imported
    home = Path(options.data).expanduser()
    if options.seed is not None and options.seed < 0:
        raise ValueError(f"--seed is {options.seed}; it must be at least 0")
    if options.recipe is None:
        rows = []
        for name in recipes():
            for folder in folders_of(name, options.data):
                origin = origin_of(folder)
                here = "is there" if (home / folder).is_dir() else "generate" if origin.generate else "fetch"
                about = f"{origin.about} ({origin.page})" if origin.page else origin.about
                rows.append((name, str(home / folder), here, about))
            for model in models_of(name, options.data):
                here = "is there" if hub.in_cache(model) else "fetch"
                rows.append((name, model, here, "a published model, in the hub's cache"))
            for before in runs_of(name):
                here = "is there" if Path("runs", before).is_dir() else "train"
                rows.append((name, f"runs/{before}", here, f"a run of the recipe {before}"))
        table(("recipe", "reads", "", "which is"), rows)
        return
    if options.recipe == DEMO:
        if not (home / DEMO).is_dir():
            fetch(DEMO, home, options.offline)
        print(f"{home / DEMO}: {origin_of(DEMO).about}")
        return
    folders, models = folders_of(options.recipe, options.data), models_of(options.recipe, options.data)
    if not folders and not models:
        print(f"{options.recipe} needs no data from elsewhere")
    for folder in folders:
        if (home / folder).is_dir():
            kept = "" if options.seed is None or not origin_of(folder).generate else ", generated with its first seed"
            print(f"{home / folder} is there{kept}")
            continue
        with progress(folder) as advance:
            fetch(folder, home, options.offline, options.seed or 0, advance)
        origin = origin_of(folder)
        print(f"{home / folder}: {origin.about}" + (f", from {origin.page}" if origin.page else ""))
    for model in models:
        hub.resolve(model, offline=options.offline)  # shows its own progress
        print(f"{model} is in the hub's cache")
    for before in runs_of(options.recipe):
        if not Path("runs", before).is_dir():
            print(f"`anyformer train {before} --data {options.data}` must be run first: {options.recipe} reads its run")
    if folders or models:
        print(f"`anyformer train {options.recipe} --data {options.data}` trains with it")
