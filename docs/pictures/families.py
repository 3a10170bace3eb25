"""Draw docs/pictures/families/: one picture for each of twelve families, and a comparison of two models.

python docs/pictures/families.py
"""

from __future__ import annotations

from pathlib import Path

from anyformer.drawing import draw

FOLDER = Path(__file__).parent / "families"
NAMES = (
    "gpt2", "llama3-8b", "bert-base", "t5-small", "vit-b16", "swin-tiny", "whisper-tiny",
    "wav2vec2-conformer-rel-pos-large", "mixtral-8x7b", "deepseek-v3", "mamba-130m", "decision-transformer-gym",
)  # fmt: skip


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in NAMES:
        draw(name).save(FOLDER / f"{name}.svg")
    draw("gpt2", "llama3-8b").save(FOLDER / "gpt2-and-llama3-8b.svg")


if __name__ == "__main__":
    main()
