"""The table of "Do Transformer Modifications Transfer Across Implementations and Applications?" [Narang et al. 2021]:
one encoder-decoder like T5-base, and every row as a change of its description.

`python -m anyformer_course.lab.narang_table [NAME ...]` prints the rows: our parameters and operations and the paper's.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence

from anyformer.counting import count
from anyformer.models import EncoderDecoderModel
from anyformer.parts.embedding.adaptive import AdaptiveTokens
from anyformer.parts.feedforward.product_keys import ProductKeyMemory
from anyformer.parts.residual import ReZero
from anyformer.specs.addresses import value_at
from anyformer.specs.codec import override
from anyformer.specs.messages import nearest
from anyformer.specs.part import walk
from anyformer_course.lab.narang_changes import (
    INPUTS,
    OUTPUT,
    Changes,
    TableSize,
    activation,
    adaptive,
    clustered_tokens,
    convolution,
    every_step,
    evolved_transformer,
    experts,
    funnel,
    gated_feedforward,
    mixture,
    narrow,
    product_keys,
    root_mean_square,
    shared_layers,
    stacks,
    switch,
    synthesizer,
    transparent,
    universal,
    vanilla,
    weighted_transformer,
    without_norms,
)

# -- rows -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """A row of the paper's first table, whose baseline has relative attention (its second table has a different
    baseline): millions of parameters, 10^12 operations, steps per second on the authors' TPUs, the pre-training loss
    after 2^16 and after all 524,288 steps, and the SuperGLUE score. Parameters, operations and losses were compared
    with the text of the published table. Steps and scores are from one machine-read copy, whose other columns agree
    with the published table; its cell for the steps of dynamic convolution is blurred (2.65 or 3.55)."""

    name: str
    changes: Callable[[TableSize], Changes]
    parameters: float
    operations: float
    steps: float
    early_loss: float
    final_loss: float
    superglue: float
    note: str = ""  # the reason if our count differs by more than 2 %

    def describe(self, size: TableSize = TableSize()) -> EncoderDecoderModel:
        spec = vanilla(size)
        changes = self.changes(size)
        return override(spec, changes) if changes else spec


CUT = "the encoder's layer has 7.1M, the decoder's 9.4M, tokens 4.2M: 20.7M; the paper prints it without the decimals"
LIGHT = "gate, value and output are 3 D^2 per layer, as first published; the authors' code has one more D^2 after the\
 kernel, and a kernel for every channel: with 24 x (D^2 + 31 D) more it is 223.5M and 10.4T, as in the paper"
DYNAMIC = (
    "3 D^2 and kernels of 12 x 31 predicted from D, as first published; the authors' code has one more D^2 after the\
 kernel and predicts kernels for one channel in n: with n = 12, kernels of 64 x 31, it is 259.5M and 11.9T, 1 % more\
 than the paper's; a kernel size of 29, inferred only from the figures, gives both columns, 257.2M and 11.8T"
)
DENSE = "D^2 and 12 x 64 x 512 instead of queries and keys, as first published; 8 heads of 128, queries instead of the\
 D^2, no keys, and one 128 x 512 for all heads, as in the authors' code, give 224.5M (and 243.4M for dense plus)"

ROWS = (
    PaperRow("Vanilla Transformer", lambda size: {}, 223, 11.1, 3.50, 2.182, 1.838, 71.66),
    PaperRow("GeLU", lambda size: activation("gelu"), 223, 11.1, 3.58, 2.179, 1.838, 75.79),
    PaperRow("Swish", lambda size: activation("silu"), 223, 11.1, 3.62, 2.186, 1.847, 73.77),
    PaperRow("ELU", lambda size: activation("elu"), 223, 11.1, 3.56, 2.270, 1.932, 67.83),
    PaperRow("GLU", lambda size: gated_feedforward(size, "sigmoid"), 223, 11.1, 3.59, 2.174, 1.814, 74.20),
    PaperRow("GeGLU", lambda size: gated_feedforward(size, "gelu"), 223, 11.1, 3.55, 2.130, 1.792, 75.96),
    PaperRow("ReGLU", lambda size: gated_feedforward(size, "relu"), 223, 11.1, 3.57, 2.145, 1.803, 76.17),
    PaperRow("SeLU", lambda size: activation("selu"), 223, 11.1, 3.55, 2.315, 1.948, 68.76),
    PaperRow("SwiGLU", lambda size: gated_feedforward(size, "silu"), 223, 11.1, 3.53, 2.127, 1.789, 76.00),
    PaperRow("LiGLU", lambda size: gated_feedforward(size, "identity"), 223, 11.1, 3.59, 2.149, 1.798, 75.34),
    PaperRow("Sigmoid", lambda size: activation("sigmoid"), 223, 11.1, 3.63, 2.291, 1.867, 74.31),
    PaperRow("Softplus", lambda size: activation("softplus"), 223, 11.1, 3.47, 2.207, 1.850, 72.45),
    PaperRow("RMS Norm", lambda size: root_mean_square(), 223, 11.1, 3.68, 2.167, 1.821, 75.45),
    PaperRow("Rezero", lambda size: every_step(pre_norm=None, residual=ReZero()), 223, 11.1, 3.51, 2.262, 1.939, 61.69),
    PaperRow("Rezero + LayerNorm", lambda size: every_step(residual=ReZero()), 223, 11.1, 3.26, 2.223, 1.858, 70.42),
    PaperRow("Rezero + RMS Norm", lambda size: {**root_mean_square(), **every_step(residual=ReZero())},
        223, 11.1, 3.34, 2.221, 1.875, 70.33),
    PaperRow("Fixup", without_norms, 223, 11.1, 2.95, 2.382, 2.067, 58.56),
    PaperRow("24 layers, d_ff = 1536, H = 6", lambda size: stacks(size.deeper(2)),
        224, 11.1, 3.33, 2.200, 1.843, 74.89),
    PaperRow("18 layers, d_ff = 2048, H = 8", lambda size: stacks(size.deeper(1.5)),
        223, 11.1, 3.38, 2.185, 1.831, 76.45),
    PaperRow("8 layers, d_ff = 4608, H = 18", lambda size: stacks(size.deeper(2 / 3)),
        223, 11.1, 3.69, 2.190, 1.847, 74.58),
    PaperRow("6 layers, d_ff = 6144, H = 24", lambda size: stacks(size.deeper(0.5)),
        223, 11.1, 3.70, 2.201, 1.857, 73.55),
    PaperRow("Block sharing", lambda size: {**shared_layers(size, "encoder", "decoder"), "ties": (INPUTS,)},
        65, 11.1, 3.91, 2.497, 2.164, 64.50),
    PaperRow("Block sharing + factorized embeddings",
        lambda size: {**shared_layers(size, "encoder", "decoder"), **narrow(size)},
        45, 9.4, 4.21, 2.631, 2.183, 60.84),
    PaperRow("Block sharing + factorized & shared embeddings",
        lambda size: {**shared_layers(size, "encoder", "decoder"), **clustered_tokens(size, (size.narrow,), False)},
        20, 9.1, 4.37, 2.907, 2.385, 53.95, CUT),
    PaperRow("Encoder only block sharing", lambda size: {**shared_layers(size, "encoder"), "ties": (INPUTS,)},
        170, 11.1, 3.68, 2.298, 1.929, 69.60),
    PaperRow("Decoder only block sharing", lambda size: {**shared_layers(size, "decoder"), "ties": (INPUTS,)},
        144, 11.1, 3.70, 2.352, 2.082, 67.93),
    PaperRow("Factorized Embedding", narrow, 227, 9.4, 3.80, 2.208, 1.855, 70.41),
    PaperRow("Factorized & shared embeddings", lambda size: clustered_tokens(size, (size.narrow,), False),
        202, 9.1, 3.92, 2.320, 1.952, 68.69),
    PaperRow("Tied encoder/decoder input embeddings", lambda size: {"ties": (INPUTS,)},
        248, 11.1, 3.55, 2.192, 1.840, 71.70),
    PaperRow("Tied decoder input and output embeddings", lambda size: {"ties": (OUTPUT,)},
        248, 11.1, 3.57, 2.187, 1.827, 74.86),
    PaperRow("Untied embeddings", lambda size: {"ties": ()}, 273, 11.1, 3.53, 2.195, 1.834, 72.99),
    PaperRow("Adaptive input embeddings", lambda size: clustered_tokens(size, adaptive(size), False),
        204, 9.2, 3.55, 2.250, 1.899, 66.57),
    PaperRow("Adaptive softmax", lambda size: clustered_tokens(size, adaptive(size), True),
        204, 9.2, 3.60, 2.364, 1.982, 72.91),
    PaperRow("Adaptive softmax without projection", lambda size: clustered_tokens(size, (size.width,) * 3, True),
        223, 10.8, 3.43, 2.229, 1.914, 71.82),
    PaperRow("Mixture of softmaxes", mixture, 232, 16.3, 2.24, 2.227, 1.821, 76.77),
    PaperRow("Transparent attention", transparent, 223, 11.1, 3.33, 2.181, 1.874, 54.31),
    PaperRow("Dynamic convolution", lambda size: convolution(size, True),
        257, 11.8, 2.65, 2.403, 2.047, 58.30, DYNAMIC),
    PaperRow("Lightweight convolution", lambda size: convolution(size, False),
        224, 10.4, 4.07, 2.370, 1.989, 63.07, LIGHT),
    PaperRow("Evolved Transformer", evolved_transformer, 217, 9.9, 3.09, 2.220, 1.863, 73.67),
    PaperRow("Synthesizer (dense)", lambda size: synthesizer(size, "dense"),
        224, 11.4, 3.47, 2.334, 1.962, 61.03, DENSE),
    PaperRow("Synthesizer (dense plus)", lambda size: synthesizer(size, "dense", "plus"),
        243, 12.6, 3.22, 2.191, 1.840, 73.98),
    PaperRow("Synthesizer (dense plus alpha)", lambda size: synthesizer(size, "dense", "alpha"),
        243, 12.6, 3.01, 2.180, 1.828, 74.25),
    PaperRow("Synthesizer (factorized)", lambda size: synthesizer(size, "factorized"),
        207, 10.1, 3.94, 2.341, 1.968, 62.78),
    PaperRow("Synthesizer (random)", lambda size: synthesizer(size, "random"), 254, 10.1, 4.08, 2.326, 2.009, 54.27),
    PaperRow("Synthesizer (random plus)", lambda size: synthesizer(size, "random", "plus"),
        292, 12.0, 3.63, 2.189, 1.842, 73.32),
    PaperRow("Synthesizer (random plus alpha)", lambda size: synthesizer(size, "random", "alpha"),
        292, 12.0, 3.42, 2.186, 1.828, 75.24),
    PaperRow("Universal Transformer", universal, 84, 40.0, 0.88, 2.406, 2.053, 70.13),
    PaperRow("Mixture of experts", experts, 648, 11.7, 3.20, 2.148, 1.785, 74.55),
    PaperRow("Switch Transformer", switch, 1100, 11.7, 3.18, 2.135, 1.758, 75.38),
    PaperRow("Funnel Transformer", funnel, 223, 1.9, 4.30, 2.288, 1.918, 67.34),
    PaperRow("Weighted Transformer", weighted_transformer, 280, 71.0, 0.59, 2.378, 1.989, 69.04),
    PaperRow("Product key memory", product_keys, 421, 386.6, 0.25, 2.155, 1.798, 75.16),
)  # fmt: skip


def row_named(name: str) -> PaperRow:
    known = {row.name: row for row in ROWS}
    if name not in known:
        raise ValueError(f"no row {name!r} in the table of modifications; {nearest(name, known)}")
    return known[name]


# -- counts -----------------------------------------------------------------------------------------------------------

READ, WRITTEN = 512, 114  # input and output tokens of an example of T5's span corruption
EXAMPLES = 64  # examples per count in the paper's column of operations (inferred from its first row)


def count_row(row: PaperRow, size: TableSize = TableSize()) -> tuple[int, int]:
    """Return the parameters, and the operations of a forward pass as the paper counts them."""
    spec = row.describe(size)
    counted = count(spec)
    return counted.parameters, EXAMPLES * (counted.flops(WRITTEN, source_length=READ) + lookup_flops(spec))


def lookup_flops(spec: EncoderDecoderModel) -> int:
    """Return the FLOPs of table lookups, counted as products with the whole table, as on a TPU."""
    total = 0
    sides = ((READ, spec.embedding, spec.encoder), (WRITTEN, spec.decoder_embedding, spec.decoder))
    for tokens, embedding, stack in sides:
        table = value_at(embedding, "tokens")
        narrow = isinstance(table, AdaptiveTokens)
        ends = (*(table.cutoffs if narrow else ()), table.vocab_size)
        widths = table.widths if narrow else (spec.width,)
        numbers = sum((end - start) * width for start, end, width in zip((0, *ends), ends, widths))
        for part in (part for _, part in walk(stack) if isinstance(part, ProductKeyMemory)):
            numbers += part.keys**2 * spec.width * part.num_heads * part.top_k
        total += 2 * tokens * numbers
    return total


def table(rows: Sequence[PaperRow] = ROWS) -> str:
    """Return a Markdown table of our parameters in millions and operations in 10^12, and the paper's."""
    lines = ["| | M parameters | paper | ratio | T operations | paper | ratio |", f"|---|{'--:|' * 6}"]
    notes: list[str] = []
    for row in rows:
        if row.note and row.note not in notes:
            notes.append(row.note)
        mark = f" [{notes.index(row.note) + 1}]" if row.note else ""
        parameters, operations = (value / unit for value, unit in zip(count_row(row), (1e6, 1e12), strict=True))
        counts = f"{parameters:.1f} | {row.parameters:g} | {parameters / row.parameters:.3f}"
        work = f"{operations:.1f} | {row.operations} | {operations / row.operations:.3f}"
        lines.append(f"| {row.name}{mark} | {counts} | {work} |")
    return "\n".join((*lines, "", *(f"{i}. {note}." for i, note in enumerate(notes, 1))))


if __name__ == "__main__":
    print(table([row_named(name) for name in sys.argv[1:]] or ROWS))
