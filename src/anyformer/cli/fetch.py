"""Fetch the public data of a recipe into data/ (or --data DIR), through `datasets` and the Hugging Face hub. Without
RECIPE, list the data of each recipe and its origin. Existing files are kept."""

from __future__ import annotations

import argparse
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a recipe; without it, list all")
    parser.add_argument("--data", metavar="DIR", default="data", help="folder of the data sets (default: data/)")
    parser.add_argument("--offline", action="store_true", help="do not use the network; read only the cache")


def run(options: argparse.Namespace) -> None:
    from anyformer.recipes import recipes
    from anyformer.recipes.shared.sources import fetch, folders_of, origin_of

    home = Path(options.data).expanduser()
    if options.recipe is None:
        from anyformer.cli.terminal import table

        rows = []
        for name in recipes():
            for folder in folders_of(name):
                origin = origin_of(folder)
                here = "is there" if (home / folder).is_dir() else "fetch" if origin.public else "bring it"
                about = f"{origin.about} ({origin.page})" if origin.page else origin.about
                rows.append((name, str(home / folder), here, about))
        table(("recipe", "reads", "", "which is"), rows)
        return
    folders = folders_of(options.recipe)
    if not folders:
        print(f"{options.recipe} reads nothing that has to be fetched")
    for folder in folders:
        if (home / folder).is_dir():
            print(f"{home / folder} is there")
            continue
        fetch(folder, home, options.offline)
        origin = origin_of(folder)
        print(f"{home / folder}: {origin.about}, from {origin.page}")
    if folders:
        print(f"`anyformer train {options.recipe} --data {options.data}` trains with it")
