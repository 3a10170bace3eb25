"""Generating Wikipedia: published perplexity and ROUGE-L by model, and what longer inputs cost each description.

T-D is a decoder with full attention; T-DMCA attends in blocks and to compressed keys, so that 11,000 tokens fit.
"""

from __future__ import annotations

from typing import Any

from anyformer.look.figures import new
from anyformer_course.pictures.points import name_points
from anyformer_course.shown import Shown, Table

# published [Liu et al. 2018, table 4]: input length L, test perplexity, ROUGE-L, our description
PUBLISHED = {
    "seq2seq-attention": (500, 5.04952, 12.7, None),
    "Transformer-ED": (500, 2.46645, 34.2, None),
    "Transformer-D": (4000, 2.22216, 33.6, "transformer-d"),
    "Transformer-DMCA, no MoE": (11000, 2.05159, 36.2, "t-dmca"),
    "Transformer-DMCA, MoE-128": (11000, 1.92871, 37.9, "t-dmca-moe-128"),
    "Transformer-DMCA, MoE-256": (7500, 1.90325, 38.8, "t-dmca-moe-256"),
}


def example(*lengths: int) -> Shown:
    """Count the FLOPs per token at these `lengths` (default: 500, 4,000 and 11,000)."""
    import anyformer as af

    lengths = lengths or (500, 4000, 11000)
    if min(lengths) < 1 or max(lengths) > 11000:
        raise ValueError("lengths must be from 1 to 11000 tokens")
    rows, per_token = [], {}
    for name, (length, perplexity, rouge, zoo) in PUBLISHED.items():
        counted = af.count(af.spec(zoo)) if zoo else None
        rows.append([name, length, perplexity, rouge, counted and counted.parameters, counted and counted.active])
        if counted:
            per_token[zoo] = [counted.flops(each) / each / 1e6 for each in lengths]
    ratio = per_token["transformer-d"][-1] / per_token["t-dmca"][-1]

    def draw() -> Any:
        figure, axes = new(2, 1, 12, 4)
        for length, _, rouge, _ in PUBLISHED.values():
            axes[0, 0].scatter(length, rouge)
        axes[0, 0].set(title="published", xlabel="input length", ylabel="ROUGE-L", xlim=(0, 15000))
        axes[0, 0].margins(y=0.15)
        name_points(axes[0, 0], [(system, length, rouge) for system, (length, _, rouge, _) in PUBLISHED.items()])
        for name, each in per_token.items():
            axes[0, 1].plot(lengths, each, marker="o", label=name)
        axes[0, 1].set(title="our count", xlabel="tokens", ylabel="million FLOPs per token")
        axes[0, 1].legend()
        return figure

    return Shown(
        f"At {lengths[-1]:,} tokens, a token of T-D costs {ratio:.1f} times as many FLOPs as a token of T-DMCA.",
        [
            Table("published results, our counts", ("model", "L", "test perplexity", "ROUGE-L", "our count",
                                                    "used per token"), rows),
            Table("million FLOPs per token", ("description", *(f"{each} tokens" for each in lengths)),
                  [[name, *each] for name, each in per_token.items()]),
        ],
        draw,
    )  # fmt: skip
