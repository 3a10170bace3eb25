"""Makes the pictures of docs/looking.md: python docs/pictures/gallery.py [shared/data]

The pictures of the lectures, and the page of `anyformer look` in a browser, of stories260K from the data folder. A
picture whose data, browser or library is missing is left as it is, and said."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import torch

from anyformer.look import lectures
from anyformer.look.inside import Inside, Scene
from anyformer.look.page import assembled, whole

HERE, REPO = Path(__file__).parent / "look", Path(__file__).resolve().parents[2]
TEXT, OTHER = "Once upon a time, Lily had a red ball. Tom had", "Once upon a time, Lily had a red ball. Sam had"


def stories(data: Path) -> Scene:
    sys.path.insert(0, str(REPO / "benchmarks"))
    import stories as llama2c

    model, encode = llama2c.load(data / "weights" / "stories260K")
    ids, other = (torch.tensor([encode(text)]) for text in (TEXT, OTHER))
    beside = {"input_ids": other} if other.shape == ids.shape else None
    return Scene(model, {"input_ids": ids}, name="stories260K", words=lambda i: encode.decode([i]), other=beside)


def photographed(scene: Scene) -> None:
    from playwright.sync_api import sync_playwright

    file = Path(tempfile.mkdtemp()) / "look.html"
    file.write_text(assembled(whole(Inside(scene))), encoding="utf-8")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for view, scheme, height in (("attention", "light", 760), ("stream", "dark", 860), ("change", "light", 930)):
            page = browser.new_context(color_scheme=scheme, viewport={"width": 1340, "height": height}).new_page()
            page.goto(file.as_uri())
            page.click(f'#tabs [data-view="{view}"]')
            page.wait_for_timeout(400)
            page.screenshot(path=HERE / f"{view}.png")
        browser.close()


def main(data: Path) -> None:
    HERE.mkdir(exist_ok=True)
    for name, picture in lectures.PICTURES.items():
        if not picture.needs:
            picture.draw().savefig(HERE / f"{name}.png", dpi=70)
    if not (data / "weights" / "stories260K").is_dir():
        print(f"{data} has no weights/stories260K: the walk and the page are left as they are")
        return
    scene = stories(data)
    lectures.walk(scene).savefig(HERE / "walk.png", dpi=70)
    if shutil.which("chromium") is None:
        print("no chromium: the page is left as it is")
    else:
        photographed(scene)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else REPO.parent / "shared" / "data")
