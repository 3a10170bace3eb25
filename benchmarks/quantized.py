"""How much 8- and 4-bit weights increase the perplexity of stories260K on wikitext-2 and on stories that it wrote.

stories260K has 260,000 parameters and width 64, and was not trained on Wikipedia; stories that it wrote in fp32 show
the loss more clearly. `error` is the relative error of all quantised weights together.

    python benchmarks/quantized.py [--characters 80000] [--data ../shared/data]
"""

from __future__ import annotations

import argparse
import copy
import gzip
from pathlib import Path
from typing import Any

import stories
import torch

import anyformer as af
from anyformer.parts.fused_linear import Concatenable
from anyformer.transforms.quantize import quantize

FORMATS: dict[str, dict[str, Any]] = {
    "int8, activations in 8 bits (CPU)": {"format": "int8"},
    "int8": {"format": "int8", "exact": True},
    "fp8": {"format": "fp8"},
    "int4, groups of 32": {"format": "int4", "group": 32},
    "int4, groups of 64": {"format": "int4", "group": 64},
    "int4, groups of 64, head in int8": {"pattern": "decoder.*", "format": "int4", "group": 64},
}


def error(plain: Any, quantized: Any) -> float:
    """Relative error of all quantised weights."""
    layers = [(address, layer) for address, layer in quantized.named_modules() if isinstance(layer, Concatenable)]
    pairs = [(plain.get_submodule(address).weight.float(), layer.dequantize()) for address, layer in layers]
    return float((sum((a - b).square().sum() for a, b in pairs) / sum(a.square().sum() for a, _ in pairs)) ** 0.5)


def bits(quantized: Any) -> float:
    """Bits per quantised weight, including scales and offsets."""
    layers = [layer for layer in quantized.modules() if isinstance(layer, Concatenable)]
    size = sum(tensor.nbytes for layer in layers for tensor in layer.buffers())
    return 8 * size / sum(layer.in_features * layer.out_features for layer in layers)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--characters", type=int, default=80_000, help="length of the wikitext-2 excerpt (default: 80000)"
    )
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    options = parser.parse_args()
    model, encode = stories.load(options.data / "weights" / "stories260K")
    start = torch.ones(8, 1, dtype=torch.long)
    own = af.generate(model, input_ids=start, max_new_tokens=255, do_sample=True, top_k=0, seed=0, eos_token_id=None)
    with gzip.open(options.data / "wikitext2_valid_test" / "wiki.test.raw.gz", "rt", encoding="utf-8") as file:
        wiki = encode(file.read(options.characters))

    def report(name: str, changed: Any) -> tuple[float, float]:
        text, tales = stories.perplexity(changed, wiki), stories.perplexity(changed, own.flatten().tolist(), 256)
        first = before or (text, tales)
        size = f"{bits(changed):5.2f}  {error(model, changed):.4f}" if changed is not model else "32.00"
        print(f"{name:38}{text:9.2f} ({text / first[0] - 1:+.2%}){tales:9.3f} ({tales / first[1] - 1:+.2%})  {size}")
        return text, tales

    print(f"{len(wiki):,} tokens of wikitext-2, {own.numel():,} of its stories; perplexity, bits per weight, error")
    before: tuple[float, float] | None = None
    before = report("fp32", model)
    for name, settings in FORMATS.items():
        changed = quantize(copy.deepcopy(model), **settings)
        if "pattern" in settings:
            quantize(changed, "head.*", exact=True)
        report(name, changed)


if __name__ == "__main__":
    main()
