"""Take the screenshots of a training report, training.png and evaluation.png: python docs/images/report.py

Trains a classifier of 400 drawn commands to a house, some of them ambiguous, evaluates it on 200 others, and opens its
report.html in Chromium. Needs playwright and a chromium; a minute on two cores."""

from __future__ import annotations

import io
import os
import random
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from anyformer import cli

HERE = Path(__file__).resolve().parent
COMMANDS = {
    "alarm": ("wake me", "set an alarm", "remind me", "get me up"),
    "lights": ("switch on the lamp", "make it brighter", "turn off the lights", "make it darker"),
    "music": ("play some jazz", "make it louder", "turn off the radio", "skip this song"),
    "weather": ("will it rain", "is it cold outside", "do I need a coat", "will it get brighter"),
}
AMBIGUOUS = ("turn it off", "make it stop", "what about tomorrow", "again")
PLACES = ("", " in the kitchen", " at seven", " tomorrow", " please", " upstairs", " at noon", " tonight")


def commands(file: Path, number: int, seed: int) -> None:
    chance = random.Random(seed)
    lines = ["text,intent\n"]
    for _ in range(number):
        intent = chance.choice(list(COMMANDS))
        words = chance.choice(AMBIGUOUS if chance.random() < 0.15 else COMMANDS[intent])
        lines.append(f"{chance.choice(('', 'please ', 'now '))}{words}{chance.choice(PLACES)},{intent}\n")
    file.write_text("".join(lines))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        commands(Path("commands.csv"), 400, seed=0)
        commands(Path("test.csv"), 200, seed=1)
        cli.dispatch(["train", "--csv", "commands.csv", "--label", "intent", "--set", "steps=200"])
        cli.dispatch(["eval", "runs/commands", "--csv", "test.csv", "--report"])
        with sync_playwright() as started:
            browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 760, "height": 900})
            page.goto(Path("runs/commands/report.html").resolve().as_uri())
            end = page.locator("h2").first.bounding_box()["y"] - 20
            screenshot(page, "training.png", 20, end)
            screenshot(page, "evaluation.png", end, end + 1000)
            browser.close()


def screenshot(page: Page, name: str, top: float, bottom: float) -> None:
    clip = {"x": 0, "y": top, "width": 760, "height": bottom - top}
    image = Image.open(io.BytesIO(page.screenshot(full_page=True, clip=clip)))
    image.quantize(256).save(HERE / name, optimize=True)


if __name__ == "__main__":
    main()
