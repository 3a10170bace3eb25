"""Draw the pictures of docs/looking.md: python docs/pictures/gallery.py [shared/data]

Draws the pictures of the lectures and a screenshot of the page of `anyformer look`, for stories260K from the data
folder. Pictures whose data, browser or library is missing are not changed, with a message. Pictures for images and
audio need no data: a ViT and a Conformer are trained on synthetic inputs, in one or two minutes on two cores."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tempfile
import wave
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer import families
from anyformer.data import Data, JSONLines, Words
from anyformer.look.inputs import blueprint, scene
from anyformer.look.page import all_views, render_page
from anyformer.look.views import Inside, Scene
from anyformer.objectives.ctc import CTC
from anyformer.train.optim import AdamW
from anyformer.train.run import Batch, Run
from anyformer.train.start import train
from anyformer_course.pictures import lectures

HERE, REPO = Path(__file__).parent / "look", Path(__file__).resolve().parents[2]
STEPS = 500  # training steps of the ViT
TEXT, OTHER = "Once upon a time, Lily had a red ball. Tom had", "Once upon a time, Lily had a red ball. Sam had"


def stories(data: Path) -> Scene:
    sys.path.insert(0, str(REPO / "benchmarks"))
    import stories as llama2c

    model, encode = llama2c.load(data / "weights" / "stories260K")
    ids, other = (torch.tensor([encode(text)]) for text in (TEXT, OTHER))
    beside = {"input_ids": other} if other.shape == ids.shape else None
    return Scene(model, {"input_ids": ids}, name="stories260K", words=lambda i: encode.decode([i]), other=beside)


def gratings(number: int, generator: torch.Generator, side: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (B, 3, side, side) with one patch of waves, and labels for its 4 directions and 4 quadrants."""
    direction, quarter = torch.randint(4, (2, number), generator=generator)
    phase = torch.rand(number, 1, 1, generator=generator) * 2 * torch.pi
    colour = torch.rand(number, 3, 1, 1, generator=generator)
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    angle = direction[:, None, None] * torch.pi / 4
    waves = torch.sin((row * angle.sin() + column * angle.cos()) * 0.9 + phase)
    middle = torch.stack((quarter // 2, quarter % 2), -1) * side // 2 + side // 4
    middle = middle + torch.randint(-3, 4, (number, 2), generator=generator)
    near = torch.exp(-((row - middle[:, :1, None]) ** 2 + (column - middle[:, 1:, None]) ** 2) / 40)
    noise = 0.3 * torch.randn(number, 3, side, side, generator=generator)
    return (waves * near)[:, None] * (0.5 + colour) + noise, direction * 4 + quarter


def trained_vit() -> Scene:
    model: torch.nn.Module = af.build(families.find("vit").read({
        "image_size": 32, "patch_size": 4, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 96, "num_labels": 16, "architectures": ["ViTForImageClassification"],
    }), seed=0)  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1)
    for step in range(STEPS):
        pixels, labels = gratings(48, generator)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, step / 50, (STEPS - step) / 200)
        logits = model(pixel_values=pixels).logits
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"ViT: loss {float(loss.detach()):.3f}, {float((logits.argmax(-1) == labels).float().mean()):.0%} right")
    return Scene(model.eval(), {"pixel_values": gratings(1, generator)[0]}, reads="image")


def spoken(folder: Path, tones: tuple[str, ...], name: str, rate: int = 8000) -> str:
    """Write a recording with one tone per word."""
    pitch, time = {"low": 300, "middle": 500, "high": 900}, np.arange(rate // 4) / rate
    gap = np.zeros(rate // 10)
    samples = np.concatenate([gap, *(np.r_[np.sin(2 * np.pi * pitch[tone] * time), gap] for tone in tones)])
    with wave.open(str(folder / name), "wb") as file:
        file.setnchannels(1), file.setsampwidth(2), file.setframerate(rate)
        file.writeframes((8000 * samples).astype("<i2").tobytes())
    return str(folder / name)


def trained_conformer(folder: Path) -> Scene:
    """Train as in docs/howto/speech.md."""
    words = ("low", "middle", "high")
    with open(folder / "clips.jsonl", "w") as lines:
        for i, said in enumerate([(a, b, c) for a in words for b in words for c in words]):
            lines.write(json.dumps({"audio": spoken(folder, said, f"{i}.wav"), "text": " ".join(said)}) + "\n")
    model = families.find("parakeet_ctc").read({"vocab_size": 5, "pad_token_id": 0, "encoder_config": {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
        "conv_kernel_size": 5, "subsampling_factor": 4, "subsampling_conv_channels": 8, "num_mel_bins": 32,
        "initializer_range": 0.2, "layerdrop": 0.0,
    }})  # fmt: skip
    run = Run(
        name="tones", model=model, data=Data(train=JSONLines(path=str(folder / "clips.jsonl"))), vocabulary=Words(),
        objective=CTC(rate=8000, form="bank", channels=32, window=200, hop=80), optimizer=AdamW(lr=1e-2),
        batch=Batch(examples=9), steps=150,
    )  # fmt: skip
    train(run, str(folder / "run"))
    said = ("low", "high", "middle", "middle", "low", "high", "high", "low")
    return scene(str(folder / "run"), spoken(folder, said, "tones.wav"))


def photographed(scene: Scene) -> None:
    from playwright.sync_api import sync_playwright

    file = Path(tempfile.mkdtemp()) / "look.html"
    file.write_text(render_page(all_views(Inside(scene))), encoding="utf-8")
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
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, 224), torch.linspace(-1, 1, 224), indexing="ij")
    rings = torch.sin(12 * (rows**2 + columns**2)).expand(1, 3, -1, -1)
    swin = dataclasses.replace(blueprint("swin-tiny", None), inputs={"pixel_values": rings})
    lectures.windows(swin).savefig(HERE / "windows.png", dpi=60)
    lectures.vit(trained_vit()).savefig(HERE / "vit.png", dpi=70)
    with tempfile.TemporaryDirectory() as folder:
        lectures.spectrogram(trained_conformer(Path(folder))).savefig(HERE / "spectrogram.png", dpi=70)
    if not (data / "weights" / "stories260K").is_dir():
        print(f"{data} has no weights/stories260K: the walk and the page are not changed")
        return
    scene = stories(data)
    lectures.walk(scene).savefig(HERE / "walk.png", dpi=70)
    if shutil.which("chromium") is None:
        print("no chromium: the page is not changed")
    else:
        photographed(scene)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else REPO.parent / "shared" / "data")
