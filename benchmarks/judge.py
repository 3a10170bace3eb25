"""A classifier for generated Fashion-MNIST images: convolutions and two Transformer layers, trained in about a minute
on a GPU. This prints its accuracy on the test images:

    python benchmarks/judge.py ../shared/data --seconds 60

Other scripts use `train`, `judged` and `accuracy`.
"""

from __future__ import annotations

import argparse
import gzip
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer.models import EncoderModel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.autoencoder import ConvEmbedding
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.pooling import MeanTokens
from anyformer.parts.init import Kaiming
from anyformer.parts.norm import LayerNorm
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer

MEAN, STD = 0.2860, 0.3530
RATE = 1.5e-3
LAYER = Block(
    attention=Sublayer(pre_norm=LayerNorm(), op=Attention(num_heads=4), dropout=0.1),
    feedforward=Sublayer(pre_norm=LayerNorm(), op=MLP(width=256), dropout=0.1),
)
JUDGE = EncoderModel(
    width=128,
    embedding=ConvEmbedding(image_size=(28, 28), channels=1, widths=(32, 64, 128), blocks=1, kernel=3),
    encoder=Stack(layers=LAYER, depth=2, norm=LayerNorm()),
    head=ClassifyHead(num_labels=10, pool=Pool(take=MeanTokens(), dropout=0.1)),
    init={"*": Kaiming(gain=1.0)},
)


def fashion(data: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images (N, 28, 28) as bytes and labels (N,), then test images and labels: all 70,000 if present,
    otherwise the part with 14,000."""
    whole, part = data / "fashion_mnist", data / "fashion_mnist_part" / "fashion_mnist_12k_2k.npz"
    if whole.is_dir():
        found = []
        for split in ("train", "t10k"):
            for name, skip, shape in (("images-idx3", 16, (-1, 28, 28)), ("labels-idx1", 8, (-1,))):
                content = gzip.decompress((whole / f"{split}-{name}-ubyte.gz").read_bytes())
                found.append(np.frombuffer(content, np.uint8, offset=skip).reshape(shape))
    else:
        with np.load(part) as stored:
            found = [stored[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    first, labels, second, others = (torch.from_numpy(np.array(each)) for each in found)
    return first, labels.long(), second, others.long()


def pixels(pictures: Tensor) -> Tensor:
    """(N, 28, 28) bytes -> (N, 1, 28, 28) normalised inputs of the classifier."""
    return ((pictures.float() / 255 - MEAN) / STD)[:, None]


def varied(x: Tensor, random: torch.Generator) -> Tensor:
    """Flip half of the images and shift all by up to two pixels."""
    flipped = torch.rand(len(x), device=x.device, generator=random) < 0.5
    x = F.pad(torch.where(flipped[:, None, None, None], x.flip(-1), x), (2, 2, 2, 2), value=-MEAN / STD)
    down, right = torch.randint(0, 5, (2, len(x)), device=x.device, generator=random)
    steps = torch.arange(28, device=x.device)
    rows, columns = (down[:, None] + steps)[:, :, None], (right[:, None] + steps)[:, None]
    return x[torch.arange(len(x), device=x.device)[:, None, None], 0, rows, columns][:, None]


def train(
    pictures: Tensor, labels: Tensor, *, seconds: float = 60.0, batch: int = 1024, device: Any = "cpu", seed: int = 0
) -> Any:
    """Return the classifier after `seconds` of training."""
    model = af.build(JUDGE, seed=seed).to(device).train()
    pictures, labels = pixels(pictures).to(device), labels.to(device)
    random = torch.Generator(device).manual_seed(seed)
    torch.manual_seed(seed)
    kind = torch.device(device).type
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05, fused=kind == "cuda")
    start, step = time.monotonic(), 0
    while (done := (time.monotonic() - start) / seconds) < 1:
        rate = min(1.0, 20 * done + 1e-3) * (0.5 + 0.5 * math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate
        rows = torch.randint(len(pictures), (batch,), device=device, generator=random)
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            scores = model(pixel_values=varied(pictures[rows], random)).logits
        loss = F.cross_entropy(scores.float(), labels[rows], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            print(f"judge: step {step}, {seconds * done:.0f} s, loss {loss.item():.3f}", flush=True)
        step += 1
    return model.eval()


@torch.no_grad()
def judged(model: Any, pictures: Tensor) -> Tensor:
    """Classify images (N, 28, 28), given as bytes; return classes (N,)."""
    return torch.cat([model(pixel_values=pixels(each).to(model.device)).logits.argmax(-1).cpu()
                      for each in pictures.split(1000)])  # fmt: skip


def accuracy(model: Any, pictures: Tensor, labels: Tensor) -> float:
    return float((judged(model, pictures) == labels.cpu()).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    x, y, x_test, y_test = fashion(options.data)
    model = train(x, y, seconds=options.seconds, batch=options.batch, device=options.device)
    print(f"accuracy {accuracy(model, x_test, y_test):.2%} on {len(x_test):,} test images")


if __name__ == "__main__":
    main()
