"""Fetch the data of a recipe into data/ (or --data DIR): public data through `datasets` and the Hugging Face hub;
episodes, speech and drawings are generated here, without a network. Without RECIPE, list the data of each recipe and
its origin. Existing files are kept."""

from __future__ import annotations

import argparse
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a recipe; without it, list all")
    parser.add_argument("--data", metavar="DIR", default="data", help="folder of the data sets (default: data/)")
    parser.add_argument("--seed", type=int, help="for generated data: another seed, other data (default: 0)")
    parser.add_argument("--offline", action="store_true", help="do not use the network; read only the cache")


def run(options: argparse.Namespace) -> None:
    from anyformer.cli.terminal import progress, table
    from anyformer.recipes import recipes
    from anyformer.recipes.shared.sources import fetch, folders_of, origin_of

    home = Path(options.data).expanduser()
    if options.seed is not None and options.seed < 0:
        raise ValueError(f"--seed is {options.seed}; a seed is 0 or more")
    if options.recipe is None:
        rows = []
        for name in recipes():
            for folder in folders_of(name, options.data):
                origin = origin_of(folder)
                here = (
                    "is there"
                    if (home / folder).is_dir()
                    else "generate"
                    if origin.generate
                    else "fetch"
                    if origin.available
                    else "bring it"
                )
                about = f"{origin.about} ({origin.page})" if origin.page else origin.about
                rows.append((name, str(home / folder), here, about))
        table(("recipe", "reads", "", "which is"), rows)
        return
    folders = folders_of(options.recipe, options.data)
    if not folders:
        print(f"{options.recipe} reads nothing that has to be fetched")
    for folder in folders:
        if (home / folder).is_dir():
            kept = "" if options.seed is None or not origin_of(folder).generate else ", with the seed it was made with"
            print(f"{home / folder} is there{kept}")
            continue
        with progress(folder) as advance:
            fetch(folder, home, options.offline, options.seed or 0, advance)
        origin = origin_of(folder)
        print(f"{home / folder}: {origin.about}" + (f", from {origin.page}" if origin.page else ""))
    if folders:
        print(f"`anyformer train {options.recipe} --data {options.data}` trains with it")
