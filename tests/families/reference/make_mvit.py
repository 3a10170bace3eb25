"""Record outputs of torchvision's MViT and timm's MultiScaleVit, for machines that have neither.

    python tests/families/reference/make_mvit.py FOLDER

FOLDER gets one safetensors file per model (`weight.*`, `input`, `logits` and the output of each block, `block.*`) and
mvit.json: the arguments of each model, and the parameter counts of the published sizes.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

THREE = [3, 3, 3]

VIDEO: dict[str, dict[str, Any]] = {
    "v1": {  # wider in the feed-forward, coarser in the attention after it
        "num_heads": [1, 2, 2, 4], "input_channels": [8, 16, 16, 32], "output_channels": [16, 16, 32, 32],
        "kernel_q": [[], THREE, [], THREE], "kernel_kv": [THREE] * 4,
        "stride_q": [[], [1, 2, 2], [], [1, 2, 2]], "stride_kv": [[1, 4, 4], [1, 2, 2], [1, 2, 2], [1, 1, 1]],
        "residual_pool": False, "residual_with_cls_embed": False, "rel_pos_embed": False, "proj_after_attn": False,
        "spatial_size": [32, 32], "temporal_size": 4,
    },
    "v2": {  # both in one attention
        "num_heads": [1, 2, 2, 4], "input_channels": [8, 8, 16, 16], "output_channels": [8, 16, 16, 32],
        "kernel_q": [THREE] * 4, "kernel_kv": [THREE] * 4,
        "stride_q": [[1, 1, 1], [1, 2, 2], [1, 1, 1], [1, 2, 2]],
        "stride_kv": [[1, 4, 4], [1, 2, 2], [1, 2, 2], [1, 1, 1]],
        "residual_pool": True, "residual_with_cls_embed": False, "rel_pos_embed": True, "proj_after_attn": True,
        "spatial_size": [32, 32], "temporal_size": 4,
    },
    "odd": {  # fewer frames per stage, odd sides, layers without pooling, and widths that are not doubled
        "num_heads": [2, 2, 3], "input_channels": [12, 12, 18], "output_channels": [12, 18, 18],
        "kernel_q": [[], [3, 5, 3], [1, 1, 1]], "kernel_kv": [[], [1, 3, 3], THREE],
        "stride_q": [[], [2, 2, 2], [1, 1, 1]], "stride_kv": [[], [1, 2, 1], [2, 1, 1]],
        "residual_pool": True, "residual_with_cls_embed": True, "rel_pos_embed": True, "proj_after_attn": True,
        "spatial_size": [28, 20], "temporal_size": 6, "patch_embed_kernel": [2, 5, 4], "patch_embed_padding": [0, 2, 0],
    },
}  # fmt: skip

IMAGE: dict[str, dict[str, Any]] = {
    "expand": {"depths": [1, 2, 1], "embed_dim": 8, "num_heads": 1, "stride_q": [[1, 1], [2, 2], [2, 2]]},
    "late": {  # like the large model: the last block of a stage is wider
        "depths": [2, 1], "embed_dim": 12, "num_heads": 2, "expand_attn": False, "stride_q": [[1, 1], [2, 2]],
        "mlp_ratio": 2.0, "qkv_bias": False, "stride_kv_adaptive": [2, 2],
    },
    "token": {
        "depths": [1, 1], "embed_dim": [8, 20], "num_heads": [2, 4], "use_cls_token": True, "use_abs_pos": True,
        "stride_q": [[1, 1], [2, 2]], "img_size": [24, 24], "residual_pooling": False, "stride_kv": [[2, 2], [1, 1]],
    },
    "max": {
        "depths": [1, 1], "embed_dim": 8, "num_heads": 1, "mode": "max", "rel_pos_type": "none", "img_size": [32, 24],
        "stride_q": [[1, 1], [2, 2]], "use_cls_token": True, "global_pool": "avg", "norm_eps": 1e-5,
    },
    "mean": {
        "depths": [1, 1], "embed_dim": 8, "num_heads": 1, "mode": "avg", "stride_q": [[2, 2], [2, 2]],
        "patch_kernel": [4, 4], "patch_stride": [2, 2], "patch_padding": [1, 1], "use_abs_pos": True,
        "img_size": [32, 32],
    },
}  # fmt: skip


def video(config: dict[str, Any]) -> tuple[nn.Module, Tensor]:
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    lists = ("num_heads", "input_channels", "output_channels", "kernel_q", "kernel_kv", "stride_q", "stride_kv")
    blocks = [MSBlockConfig(*each) for each in zip(*(config[name] for name in lists), strict=True)]
    others = {n: tuple(v) if isinstance(v, list) else v for n, v in config.items() if n not in lists}
    model = MViT(block_setting=blocks, num_classes=5, **others)
    return model, torch.randn(2, 3, config["temporal_size"], *config["spatial_size"])


def image(config: dict[str, Any]) -> tuple[nn.Module, Tensor]:
    from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

    def frozen(value: Any) -> Any:
        return tuple(frozen(item) for item in value) if isinstance(value, list) else value

    values = {name: frozen(value) for name, value in config.items()}
    of_model = {"img_size": values.pop("img_size", (32, 32)), "global_pool": values.pop("global_pool", None)}
    model = MultiScaleVit(MultiScaleVitCfg(**values), num_classes=5, **of_model)
    return model, torch.randn(2, 3, *of_model["img_size"])


@torch.no_grad()
def draw(model: nn.Module) -> None:
    """Set random weights, so that each affects the output."""
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "pos" not in name and "token" not in name:
            weight.normal_(std=math.prod(weight.shape[1:]) ** -0.5)
        else:
            scale = weight.dim() == 1 and name.endswith("weight")  # of a norm: about 1
            weight.normal_(std=0.3).add_(float(scale))


def reference(make: Any, config: dict[str, Any], seed: int) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(seed)
    model, x = make(config)
    draw(model)
    model.eval()
    found: dict[str, Tensor] = {}
    blocks = [module for module in model.modules() if type(module).__name__.lower() == "multiscaleblock"]
    for i, block in enumerate(blocks):
        block.register_forward_hook(lambda _, __, out, i=i: found.__setitem__(f"block.{i}", out[0].clone()))
    with torch.no_grad():
        logits = model(x)
    tensors = {"input": x, "logits": logits, **found}
    tensors |= {f"weight.{name}": weight.detach() for name, weight in model.state_dict().items()}
    return model, {name: tensor.contiguous() for name, tensor in tensors.items()}


def published() -> dict[str, int]:
    """Return the parameter counts of the named sizes."""
    found = {}
    for module, names in (
        ("torchvision.models.video", ("mvit_v1_b", "mvit_v2_s")),
        ("timm.models.mvitv2", ("mvitv2_tiny", "mvitv2_small", "mvitv2_base", "mvitv2_large", "mvitv2_small_cls",
                                "mvitv2_base_cls", "mvitv2_large_cls", "mvitv2_huge_cls")),
    ):  # fmt: skip
        for name in names:
            try:
                with torch.device("meta"):
                    model = getattr(__import__(module, fromlist=[name]), name)()
                found[name] = sum(weight.numel() for weight in model.parameters())
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}")
    return found


def main(folder: str) -> None:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    made: dict[str, Any] = {"models": {}, "versions": {"torch": torch.__version__}}
    for library, make, configs in (("torchvision", video, VIDEO), ("timm", image, IMAGE)):
        for seed, (name, config) in enumerate(configs.items()):
            try:
                made["versions"][library] = __import__(library).__version__
                model, tensors = reference(make, config, seed)
            except Exception as error:
                print(f"{library} {name}: {type(error).__name__}: {error}")
                continue
            save_file(tensors, out / f"{library}-{name}.safetensors")
            made["models"][f"{library}-{name}"] = {"class": type(model).__name__, "config": config}
            print(library, name, *tensors["logits"][0].tolist())
    made["parameters"] = published()
    (out / "mvit.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
