"""The taxonomy of efficient Transformers [Tay et al. 2020], with the Part of anyformer that computes each of them."""

from __future__ import annotations

from typing import Any

# group -> (variant, name in af.parts)
TAXONOMY: dict[str, dict[str, str]] = {
    "fixed patterns": {
        "Longformer 2020": "LocalAttention",
        "BigBird 2020": "BlockSparseAttention",
        "block-local 2018": "ChunkAttention",
    },
    "learnable patterns": {
        "Reformer 2020": "LSHAttention",
        "Routing Transformer 2020": "RoutingAttention",
        "Sinkhorn 2020": "SinkhornAttention",
    },
    "low rank": {
        "Linformer 2020": "LinformerAttention",
        "Nyströmformer 2021": "NystromAttention",
        "Synthesizer 2020": "Synthesizer",
    },
    "kernels": {
        "Performer 2020": "SoftmaxFeatures",
        "linear attention 2020": "EluFeatures",
        "RFA 2021": "RandomFeatures",
    },
    "memory and downsampling": {
        "Set Transformer 2019": "InducedAttention",
        "memory-compressed 2018": "CompressedAttention",
        "Luna 2021": "LunaAttention",
        "Perceiver 2021": "Perceiver",
        "Funnel 2020": "Funnel",
        "Poolingformer 2021": "PoolingAttention",
        "TokenLearner 2021": "TokenLearner",
    },
    "recurrence and state spaces": {"S4 2021": "S4", "RWKV 2023": "TimeMix", "Mamba-2 2024": "DualState"},
    "sparse experts": {"Switch 2021": "Switch", "GShard 2020": "GShard", "mixture of experts 2017": "NoisyTopK"},
}


def taxonomy() -> Any:
    """Draw one column per group, with a box per variant: its name and the Part."""
    from anyformer.look.figures import new

    tallest = max(map(len, TAXONOMY.values()))
    figure, axes = new(1, 1, 2.1 * len(TAXONOMY), 0.62 * tallest + 1.2)
    axis = axes[0, 0]
    axis.set(xlim=(0, len(TAXONOMY)), ylim=(tallest + 1.1, -0.6))
    axis.axis("off")
    for column, (group, variants) in enumerate(TAXONOMY.items()):
        color = f"C{column}"
        axis.text(column + 0.5, 0, group, ha="center", va="center", fontsize=9, weight="bold", color=color)
        axis.plot([column + 0.5] * 2, [0.35, len(variants) + 0.6], color=color, linewidth=1, zorder=0)
        for row, (variant, part) in enumerate(variants.items(), 1):
            box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": color}
            axis.text(column + 0.5, row + 0.1, f"{variant}\n{part}", ha="center", va="center", fontsize=7, bbox=box)
    axis.set_title("efficient Transformers: the group, the variant, the Part that computes it", fontsize=10)
    return figure
