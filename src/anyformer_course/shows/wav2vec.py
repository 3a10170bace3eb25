"""wav2vec 2.0: a waveform becomes frames, some frames are masked, and the model must find the code of a masked frame.

Each letter of the text becomes a tone. A small wav2vec 2.0 with random weights computes one frame per 320 samples
(20 ms), a code per frame, and the contrastive loss, which begins near the logarithm of the number of candidates.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from anyformer.look.figures import new
from anyformer_course.shown import Shown, Table

RATE, TONE = 16000, 0.12  # samples per second, seconds per letter
NEGATIVES = 10


@torch.no_grad()
def example(text: str = "hello world", *, hidden: float = 0.5, span: int = 4, seed: int = 0) -> Shown:
    """Mask about a share `hidden` of the frames in spans of `span` frames."""
    import anyformer as af
    from anyformer import families
    from anyformer.parts.head.contrastive import draw_negatives

    if not 2 <= len(text) <= 40 or not 0 < hidden < 1 or span < 1:
        raise ValueError("write 2 to 40 letters; hidden must be between 0 and 1, and span at least 1")
    time = torch.arange(int(RATE * TONE)) / RATE
    tones = [torch.sin(2 * math.pi * (200 + 40 * (ord(letter) % 32)) * time) for letter in text]
    samples = torch.cat(tones)[None]
    width = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = {**width, "conv_dim": [64] * 7, "num_conv_pos_embeddings": 16, "num_negatives": NEGATIVES,
              "architectures": ["Wav2Vec2ForPreTraining"], "num_codevectors_per_group": 16}  # fmt: skip
    spec: Any = families.find("wav2vec2").read(config)
    stem = spec.embedding.stem
    model = af.build(spec, seed=seed).eval()
    frames = stem.frames(samples.shape[1])
    torch.manual_seed(seed)
    starts = torch.randperm(max(frames - span, 1))[: max(1, round(hidden * frames / span))]
    masked = torch.zeros(1, frames, dtype=torch.bool)
    for start in starts.tolist():
        masked[0, start : start + span] = True
    negatives = draw_negatives(masked, NEGATIVES)
    run = model(input_values=samples, mask_time_indices=masked, sampled_negative_indices=negatives)
    number = int(masked.sum())
    loss = float(run.contrastive_loss) / number
    states, targets = run.projected_states[0], run.projected_quantized_states[0]
    cosines = torch.cosine_similarity(states[:, None], targets[None], dim=-1)

    def draw() -> Any:
        figure, axes = new(1, 3, 11, 6, height_ratios=[2, 1, 3])
        start = int(RATE * TONE) - 2 * stem.hop  # the end of the first tone and the start of the second
        near = samples[0, start : start + 4 * stem.hop]
        axes[0, 0].plot(torch.arange(start, start + len(near)) / RATE, near, linewidth=1)
        for i in range(5):
            axes[0, 0].axvline((start + i * stem.hop) / RATE, color="gray", linestyle=":")
        axes[0, 0].set(title=f"4 frames of {stem.hop} samples, where the first letter ends", xlabel="seconds")
        axes[0, 0].margins(x=0)
        axes[1, 0].imshow(masked.float(), aspect="auto", cmap="Greys", vmin=0, vmax=1.5)
        axes[1, 0].set(title=f"{frames} frames, {number} masked")
        axes[1, 0].set_yticks([])
        axes[2, 0].imshow(cosines, aspect="auto")
        axes[2, 0].set(title="cosine of each context (row) with each frame's code (column)")
        return figure

    return Shown(
        f"{samples.shape[1]:,} samples ({samples.shape[1] / RATE:.2f} s) become {frames} frames, one per {stem.hop} "
        f"samples; {number} are masked. Untrained, the loss is {loss:.2f}; guessing among {NEGATIVES + 1} gives "
        f"{math.log(NEGATIVES + 1):.2f}.",
        [
            Table("from samples to frames", ("layer", "kernel", "stride", "outputs"), outputs(stem, samples.shape[1])),
            Table("training task", ("what", "number"), [
                ["frames", frames], ["masked frames", number], ["negatives per masked frame", NEGATIVES],
                ["samples that a frame reads", stem.reach], ["milliseconds per frame", 1000 * stem.hop / RATE],
                ["codes in use (perplexity)", float(run.codevector_perplexity)],
                ["contrastive loss per masked frame", loss],
                ["loss of guessing", math.log(NEGATIVES + 1)]]),
        ],
        draw,
    )  # fmt: skip


def outputs(stem: Any, samples: int) -> list[list[Any]]:
    rows = []
    for i, (kernel, stride) in enumerate(zip(stem.kernels, stem.strides, strict=True)):
        samples = (samples - kernel) // stride + 1
        rows.append([f"convolution {i + 1}", kernel, stride, samples])
    return rows
