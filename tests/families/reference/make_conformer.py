"""Record outputs of torchaudio's Conformer, for machines without it.

    python tests/families/reference/make_conformer.py FOLDER

FOLDER gets one safetensors file per model: `weight.*`, `input`, `lengths` and `output`, including the library's output
at padding. (Files here: torchaudio 2.8.0.)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

WIDE = {"input_dim": 16, "num_heads": 4, "ffn_dim": 24, "num_layers": 2, "depthwise_conv_kernel_size": 5}
CONFIGS: dict[str, dict[str, Any]] = {
    "conformer": WIDE,
    "conformer-group": {**WIDE, "num_heads": 2, "use_group_norm": True, "dropout": 0.1},
    "conformer-first": {**WIDE, "input_dim": 12, "depthwise_conv_kernel_size": 1, "convolution_first": True},
    "conformer-both": {
        "input_dim": 18, "num_heads": 3, "ffn_dim": 10, "num_layers": 3, "depthwise_conv_kernel_size": 9,
        "use_group_norm": True, "convolution_first": True,
    },
}  # fmt: skip
LENGTHS = [21, 13, 4]


def build(config: dict[str, Any], seed: int = 0) -> nn.Module:
    """Set random weights and running statistics, so that each affects the output."""
    from torchaudio.models.conformer import Conformer

    torch.manual_seed(seed)
    model = Conformer(**config)
    for name, tensor in model.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
        elif tensor.dim() > 1:
            tensor.normal_(std=tensor[0].numel() ** -0.5)
        elif tensor.is_floating_point():
            tensor.add_(0.3 * torch.randn_like(tensor))
    return model.eval()


@torch.no_grad()
def reference(config: dict[str, Any], seed: int) -> dict[str, Tensor]:
    model, lengths = build(config, seed), torch.tensor(LENGTHS)
    x = torch.randn(len(LENGTHS), max(LENGTHS), config["input_dim"])
    output, _ = model(x, lengths)
    weights = {f"weight.{name}": weight.contiguous() for name, weight in model.state_dict().items()}
    return {"input": x, "lengths": lengths, "output": output.contiguous(), **weights}


def main(folder: str) -> None:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for seed, (name, config) in enumerate(CONFIGS.items()):
        save_file(reference(config, seed), out / f"torchaudio-{name}.safetensors")


if __name__ == "__main__":
    main(sys.argv[1])
