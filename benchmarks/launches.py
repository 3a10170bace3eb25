"""Compare kernel launches per training step and Python time per forward pass with transformers.

Narrow models of 12 layers (Swin 2 + 2 + 6 + 2, encoder-decoders 6 + 6) with the same weights and batch. Their kernels
take almost no time, so what remains is the overhead that a GPU waits for. Launches are aten operations of a forward and
a backward pass that compute something (not views or empty tensors), including casts; `amp` is bf16 autocast.
Milliseconds are CPU time of a forward pass without gradients, in one thread, as medians of alternating runs. Ratios are
theirs / ours, so higher is better.

    python benchmarks/launches.py [--family swin ...] [--repeats 30] [--ops] [--json]

`--ops` also lists the operations that one side launches more often.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

import anyformer as af

Inputs = dict[str, Any]
TEXT = {"hidden_size": 16, "num_hidden_layers": 12, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 99}
IMAGE = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 12, "num_attention_heads": 2,
         "intermediate_size": 32}  # fmt: skip
PAIR = {"d_model": 16, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 99}  # fmt: skip
PIXELS = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(5, 90, (2, 12), generator=torch.Generator().manual_seed(0))
PADS = torch.arange(12) < torch.tensor([[12], [9]])


@dataclasses.dataclass(frozen=True)
class Case:
    """A published class with a small config, and a batch with labels."""

    architecture: str
    config: Inputs
    batch: Inputs
    note: str = ""


def text(ids: torch.Tensor = IDS, labels: bool = True) -> Inputs:
    return {"input_ids": ids, **({"labels": ids} if labels else {})}


CLASSES = {"labels": torch.tensor([0, 1])}
PADDED = {**text(), "attention_mask": PADS.long()}
CASES: dict[str, Case] = {
    "gpt2": Case("GPT2LMHeadModel", {"n_embd": 16, "n_layer": 12, "n_head": 2, "vocab_size": 99}, text()),
    "bert": Case("BertForMaskedLM", TEXT, PADDED),
    "roberta": Case("RobertaForMaskedLM", TEXT, PADDED),
    "deberta-v2": Case("DebertaV2ForMaskedLM", {
        **TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}, PADDED),
    "llama": Case("LlamaForCausalLM", TEXT, text()),
    "mixtral": Case("MixtralForCausalLM", {**TEXT, "num_key_value_heads": 2, "num_local_experts": 4}, text()),
    "mamba": Case("MambaForCausalLM", {"hidden_size": 16, "num_hidden_layers": 12, "vocab_size": 99}, text()),
    "t5": Case("T5ForConditionalGeneration", {
        "d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 6, "num_heads": 2, "vocab_size": 99,
        "decoder_start_token_id": 0}, PADDED),
    "bart": Case("BartForConditionalGeneration", PAIR, PADDED),
    "whisper": Case("WhisperForConditionalGeneration", {
        **PAIR, "max_source_positions": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1}, {"input_features": torch.randn(2, 80, 100), "labels": IDS}),
    "wav2vec2": Case("Wav2Vec2ForCTC", {
        **TEXT, "conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
        "apply_spec_augment": False}, {"input_values": torch.randn(2, 8000), "labels": IDS[:, :4]}),
    "vit": Case("ViTForImageClassification", IMAGE, {"pixel_values": PIXELS, **CLASSES}),
    "deit": Case("DeiTForImageClassification", IMAGE, {"pixel_values": PIXELS, **CLASSES}),
    "swin": Case("SwinForImageClassification", {
        "image_size": 128, "patch_size": 4, "embed_dim": 16, "depths": [2, 2, 6, 2], "num_heads": [1, 2, 2, 2],
        "window_size": 4}, {"pixel_values": torch.randn(2, 3, 128, 128), **CLASSES}),
    "clip": Case("CLIPModel", {
        "text_config": TEXT | {"eos_token_id": 98}, "vision_config": IMAGE, "projection_dim": 16},
        {"input_ids": IDS, "pixel_values": PIXELS, "return_loss": True}),
}  # fmt: skip

FREE = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "detach", "lift_fresh", "alias",
        "_unsafe_view", "_local_scalar_dense"}  # fmt: skip


class Launches(TorchDispatchMode):
    """Counts operations that compute something, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.count: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not func.is_view and name not in FREE:
            self.count[name] += 1
        return func(*args, **(kwargs or {}))


def models(case: Case, family: str) -> tuple[Any, Any]:
    """Return (ours, theirs) with the same random weights, loaded from a checkpoint."""
    config = transformers.AutoConfig.for_model(family, **case.config)
    config.architectures = [case.architecture]
    torch.manual_seed(0)
    theirs = getattr(transformers, case.architecture)(config)
    with tempfile.TemporaryDirectory(prefix="anyformer-bench-") as folder:
        theirs.save_pretrained(folder)
        ours = af.load(folder, offline=True)
    return ours, theirs


def launches(model: Any, batch: Inputs, amp: bool) -> tuple[collections.Counter[str], collections.Counter[str]]:
    """Count the operations of a forward and a backward pass in training, after one warm-up step."""
    model.train()
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=amp), Launches() as forward:
            loss = model(**batch).loss
        with Launches() as backward:
            loss.backward()
    model.zero_grad(set_to_none=True)
    return forward.count, backward.count


@torch.no_grad()
def python_times(ours: Any, theirs: Any, batch: Inputs, repeats: int) -> list[tuple[float, float]]:
    """Return pairs of CPU milliseconds, (ours, theirs), one per pair of runs."""
    batch = {name: value for name, value in batch.items() if name not in ("labels", "return_loss")}
    if theirs.config.is_encoder_decoder:
        batch["decoder_input_ids"] = IDS
    sides = ours.eval(), theirs.eval()
    pairs = []
    for i in range(repeats + 3):
        spent = [0.0, 0.0]
        for side in (0, 1) if i % 2 else (1, 0):
            start = time.process_time()
            sides[side](**batch)
            spent[side] = 1e3 * (time.process_time() - start)
        pairs += [(spent[0], spent[1])] if i >= 3 else []
    return pairs


def measure(family: str, repeats: int) -> dict[str, Any]:
    case = CASES[family]
    ours, theirs = models(case, family)
    row: dict[str, Any] = {"family": family, "more": {}}
    for kind, amp in (("fp32", False), ("amp", True)):
        counts = [launches(model, case.batch, amp) for model in (ours, theirs)]
        row[kind] = [[sum(each.values()) for each in side] for side in counts]
        mine, other = (side[0] + side[1] for side in counts)
        row["more"][kind] = {name: mine[name] - other[name] for name in {*mine, *other} if mine[name] != other[name]}
    pairs = python_times(ours, theirs, case.batch, repeats)
    row["ours_ms"], row["theirs_ms"] = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    row["ratio"] = statistics.median(b / a for a, b in pairs)
    return row


def shown(counts: list[list[int]]) -> str:
    """`ours forward + backward / theirs  ratio`"""
    mine, other = counts
    return f"{mine[0]:5}+{mine[1]:<5}{other[0]:5}+{other[1]:<5}{sum(other) / sum(mine):5.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--ops", action="store_true", help="list operations launched more often by one side")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args()
    torch.set_num_threads(1)
    show: Callable[..., None] = print
    if not options.json:
        show(f"torch {torch.__version__}, transformers {transformers.__version__}")
        heads = [f"{kind + ': ours':>11}{'theirs':>11}{'ratio':>6}" for kind in ("fp32", "amp")]
        show(f"{'family':12}{'  '.join(heads)}{'ours ms':>10}{'theirs':>8}{'ratio':>7}")
    for family in options.family:
        row = measure(family, options.repeats)
        if options.json:
            show(json.dumps(row), flush=True)
            continue
        show(f"{family:12}{shown(row['fp32'])}  {shown(row['amp'])}{row['ours_ms']:10.2f}{row['theirs_ms']:8.2f}"
             f"{row['ratio']:7.2f}", flush=True)  # fmt: skip
        for kind, more in row["more"].items() if options.ops else ():
            show(f"    {kind}:", ", ".join(f"{name} {n:+}" for name, n in sorted(more.items(), key=lambda e: -e[1])))


if __name__ == "__main__":
    main()
