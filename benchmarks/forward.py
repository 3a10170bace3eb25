"""Compare forward passes with transformers: one process, the same weights, threads and inputs, fp32.

Each side runs with its default settings. Runs alternate between the two sides, so that other load on the machine
affects both. Each pair gives one ratio, theirs / ours: above 1, we are faster. The last column is the spread of the
ratios, from the 10th to the 90th percentile.

    python benchmarks/forward.py [--family gpt2] [--repeats 20] [--threads 2] [--cpu] [--json]

On a busy machine, use `--cpu`: it measures CPU time of one thread instead of wall time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch
import transformers

import anyformer as af
from anyformer import families


@dataclasses.dataclass(frozen=True)
class Case:
    """A published class, its size and typical inputs."""

    family: str  # model_type
    architecture: str
    size: str  # for the table
    inputs: Callable[[Any], dict[str, Any]]  # from the config


def tokens(batch: int, length: int, name: str = "input_ids") -> Callable[[Any], dict[str, Any]]:
    return lambda config: {name: torch.randint(5, config.vocab_size - 5, (batch, length))}


def masked(batch: int, length: int) -> Callable[[Any], dict[str, Any]]:
    """Tokens and an attention mask without padding."""
    return lambda config: {
        **tokens(batch, length)(config),
        "attention_mask": torch.ones(batch, length, dtype=torch.long),
    }


def padded(batch: int, length: int) -> Callable[[Any], dict[str, Any]]:
    """Rows of different lengths, padded on the right."""

    def make(config: Any) -> dict[str, Any]:
        lengths = torch.linspace(length // 2, length, batch).long()
        return {**tokens(batch, length)(config), "attention_mask": (torch.arange(length) < lengths[:, None]).long()}

    return make


def floats(name: str, *shape: int) -> Callable[[Any], dict[str, Any]]:
    return lambda config: {name: torch.randn(shape)}


def pair(batch: int, length: int, target: int) -> Callable[[Any], dict[str, Any]]:
    return lambda config: {
        **padded(batch, length)(config),
        **tokens(batch, target, "decoder_input_ids")(config),
    }


SIZES: dict[str, dict[str, Any]] = {
    "llama": {  # TinyLlama 1.1B with 4 of its 22 layers
        "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 4,
        "num_attention_heads": 32, "num_key_value_heads": 4,
    },
    "marian": {  # opus-mt-en-de
        "d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8,
        "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "vocab_size": 58101,
        "pad_token_id": 58100, "decoder_start_token_id": 58100, "eos_token_id": 0, "max_position_embeddings": 512,
        "activation_function": "swish", "scale_embedding": True,
    },
    "t5": {  # t5-small
        "d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "d_kv": 64, "decoder_start_token_id": 0,
    },
    "wav2vec2-conformer": {
        "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048,
        "vocab_size": 32,
    },
    "wav2vec2": {"num_hidden_layers": 6, "vocab_size": 32},  # base with 6 of its 12 layers
    "whisper": {  # tiny
        "d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536,
        "decoder_layers": 4, "decoder_attention_heads": 6, "decoder_ffn_dim": 1536,
    },
    "mixtral": {  # 8x7b with 1/8 of its width, depth and vocabulary
        "vocab_size": 4000, "hidden_size": 512, "intermediate_size": 1792, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 1,
    },
    "switch_transformers": {  # base-8 with 4 + 4 of its 12 + 12 layers
        "d_ff": 3072, "num_layers": 4, "num_decoder_layers": 4, "num_sparse_encoder_layers": 2,
        "num_sparse_decoder_layers": 2, "decoder_start_token_id": 0,
    },
    "deepseek_v3": {  # 32 instead of 256 routed experts, and narrow
        "vocab_size": 8000, "hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 256,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "kv_lora_rank": 128,
        "q_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "n_routed_experts": 32,
        "first_k_dense_replace": 1,
    },
    "mamba": {"hidden_size": 768, "num_hidden_layers": 6, "vocab_size": 50280},  # 130m with 6 of its 24 layers
    "mamba2": {  # 130m with 6 of its 24 layers
        "hidden_size": 768, "num_hidden_layers": 6, "vocab_size": 50288, "num_heads": 24, "n_groups": 1,
        "state_size": 128,
    },
    "rwkv": {"hidden_size": 768, "num_hidden_layers": 6, "vocab_size": 50277},  # 169m with 6 of its 12 layers
    "gpt_neox": {  # pythia-160m with 6 of its 12 layers
        "vocab_size": 50304, "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "opt": {"num_hidden_layers": 6},  # 125m with 6 of its 12 layers
    "bloom": {"vocab_size": 32000, "hidden_size": 512, "n_layer": 6, "n_head": 8},
    "ctrl": {"vocab_size": 32000, "n_embd": 512, "dff": 2048, "n_layer": 6, "n_head": 8},
    "deepseek_v2": {
        "vocab_size": 8000, "hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 256,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "kv_lora_rank": 128,
        "q_lora_rank": None, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "n_routed_experts": 32,
        "n_shared_experts": 1, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "topk_method": "greedy",
        "n_group": 1, "topk_group": 1, "head_dim": 32,
    },
    "albert": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},  # base
    "longformer": {
        "num_hidden_layers": 4, "attention_window": 256, "vocab_size": 50265, "max_position_embeddings": 4098,
    },
    "big_bird": {"num_hidden_layers": 4},
    "nystromformer": {"num_hidden_layers": 6, "segment_means_seq_len": 1024, "max_position_embeddings": 1024},
    "funnel": {"block_sizes": [2, 2, 2], "num_decoder_layers": 2},
    "bart": {  # base
        "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12,
        "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
    },
    "m2m_100": {  # half as wide as 418M, 6 + 6 of its 12 + 12 layers
        "vocab_size": 32000, "d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 2048,
        "decoder_ffn_dim": 2048, "encoder_attention_heads": 8, "decoder_attention_heads": 8,
    },
}  # fmt: skip

CASES = (
    Case("gpt2", "GPT2LMHeadModel", "124M, 4 x 128", masked(4, 128)),
    Case("gpt2", "GPT2LMHeadModel", "124M, 4 x 128 padded", padded(4, 128)),
    Case("llama", "LlamaForCausalLM", "4 layers of 1.1B, 2 x 128", masked(2, 128)),
    Case("llama", "LlamaForCausalLM", "the same, padded", padded(2, 128)),
    Case("bert", "BertForMaskedLM", "base, 8 x 128 padded", padded(8, 128)),
    Case("t5", "T5ForConditionalGeneration", "small, 8 x 128 -> 32 padded", pair(8, 128, 32)),
    Case("marian", "MarianMTModel", "base, 8 x 64 -> 64 padded", pair(8, 64, 64)),
    Case("swin", "SwinForImageClassification", "tiny, 8 x 224 x 224", floats("pixel_values", 8, 3, 224, 224)),
    Case("swinv2", "Swinv2ForImageClassification", "tiny, 2 x 224 x 224", floats("pixel_values", 2, 3, 224, 224)),
    Case("vit", "ViTForImageClassification", "base/16, 2 x 224 x 224", floats("pixel_values", 2, 3, 224, 224)),
    Case("resnet", "ResNetForImageClassification", "50, 4 x 224 x 224", floats("pixel_values", 4, 3, 224, 224)),
    Case("wav2vec2-conformer", "Wav2Vec2ConformerForCTC", "6 layers of 512, 2 x 4 s", floats("input_values", 2, 64000)),
    Case("wav2vec2", "Wav2Vec2ForCTC", "6 layers of base, 2 x 4 s", floats("input_values", 2, 64000)),
    Case("whisper", "WhisperForAudioClassification", "tiny, 1 x 30 s", floats("input_features", 1, 80, 3000)),
    Case("mixtral", "MixtralForCausalLM", "4 layers of 512, 1 x 128", tokens(1, 128)),
    Case("mixtral", "MixtralForCausalLM", "4 layers of 512, 4 x 128", tokens(4, 128)),
    Case(
        "switch_transformers",
        "SwitchTransformersForConditionalGeneration",
        "4 + 4 layers of base-8, 8 x 64",
        pair(8, 64, 32),
    ),
    Case("deepseek_v3", "DeepseekV3ForCausalLM", "4 layers of 512, 4 x 128", tokens(4, 128)),
    Case("deepseek_v2", "DeepseekV2ForCausalLM", "4 layers of 512, 4 x 128", tokens(4, 128)),
    Case("mamba", "MambaForCausalLM", "6 layers of 130M, 4 x 256", tokens(4, 256)),
    Case("mamba2", "Mamba2ForCausalLM", "6 layers of 130M, 4 x 256", tokens(4, 256)),
    Case("rwkv", "RwkvForCausalLM", "6 layers of 169M, 4 x 256", tokens(4, 256)),
    Case("openai-gpt", "OpenAIGPTLMHeadModel", "117M, 4 x 128", tokens(4, 128)),
    Case("opt", "OPTForCausalLM", "6 layers of 125M, 4 x 128", padded(4, 128)),
    Case("gpt_neox", "GPTNeoXForCausalLM", "6 layers of 160M, 4 x 128", padded(4, 128)),
    Case("bloom", "BloomForCausalLM", "6 layers of 512, 4 x 128", padded(4, 128)),
    Case("ctrl", "CTRLLMHeadModel", "6 layers of 512, 4 x 128", tokens(4, 128)),
    Case("roberta", "RobertaForMaskedLM", "base, 4 x 128 padded", padded(4, 128)),
    Case("distilbert", "DistilBertForMaskedLM", "base, 8 x 128 padded", padded(8, 128)),
    Case("albert", "AlbertForMaskedLM", "base, 4 x 128 padded", padded(4, 128)),
    Case("electra", "ElectraForPreTraining", "small, 8 x 128 padded", padded(8, 128)),
    Case("longformer", "LongformerForMaskedLM", "4 layers of base, 1 x 2048", masked(1, 2048)),
    Case("big_bird", "BigBirdForMaskedLM", "4 layers of base, 1 x 2048", masked(1, 2048)),
    Case("nystromformer", "NystromformerForMaskedLM", "6 layers of base, 1 x 1024", masked(1, 1024)),
    Case("funnel", "FunnelForMaskedLM", "6 + 2 layers, 4 x 128 padded", padded(4, 128)),
    Case("bart", "BartForConditionalGeneration", "base, 4 x 128 -> 64 padded", pair(4, 128, 64)),
    Case("m2m_100", "M2M100ForConditionalGeneration", "6 + 6 of 512, 8 x 64 -> 64 padded", pair(8, 64, 64)),
)


def models(case: Case) -> tuple[Any, Any, Any]:
    """Return (ours, theirs, config) with the same random weights, loaded from a checkpoint."""
    config = transformers.AutoConfig.for_model(case.family, **SIZES.get(case.family, {}))
    config.architectures = [case.architecture]
    torch.manual_seed(0)
    theirs = getattr(transformers, case.architecture)(config).eval()
    with tempfile.TemporaryDirectory(prefix="anyformer-bench-") as folder:
        theirs.save_pretrained(folder)
        ours = af.load(folder, offline=True)
    return ours, theirs, config


def clock(run: Callable[[], Any], cpu: bool) -> float:
    now = time.process_time if cpu else time.perf_counter
    start = now()
    run()
    return now() - start


def first(out: Any) -> torch.Tensor:
    return out["logits"] if "logits" in out else out["last_hidden_state"]


def percentile(values: list[float], share: float) -> float:
    values = sorted(values)
    return values[min(int(share * len(values)), len(values) - 1)]


@torch.no_grad()
def measure(case: Case, repeats: int, cpu: bool) -> dict[str, Any]:
    ours, theirs, config = models(case)
    torch.manual_seed(1)
    inputs = case.inputs(config)
    a, b = first(ours(**inputs)), first(theirs(**inputs))
    mask = inputs.get("attention_mask")
    if mask is not None and a.shape[:2] == mask.shape:  # outputs for padding may differ
        a, b = a[mask.bool()], b[mask.bool()]
    gap = float((a - b).abs().max())
    assert gap <= 1e-4 * max(1.0, float(b.abs().max())), f"{case.family}: the two sides differ by {gap:.1e}"
    times: list[tuple[float, float]] = []
    mine, other = (lambda: ours(**inputs)), (lambda: theirs(**inputs))
    for i in range(repeats + 1):  # the first pair warms up
        if i % 2:
            t_theirs, t_ours = clock(other, cpu), clock(mine, cpu)
        else:
            t_ours, t_theirs = clock(mine, cpu), clock(other, cpu)
        times += [(t_ours, t_theirs)] if i else []
    ratios = [theirs / ours for ours, theirs in times]
    return {
        "family": case.family,
        "class": case.architecture,
        "size": case.size,
        "ours_ms": 1e3 * statistics.median(t for t, _ in times),
        "theirs_ms": 1e3 * statistics.median(t for _, t in times),
        "ratio": statistics.median(ratios),
        "ratio_10": percentile(ratios, 0.1),
        "ratio_90": percentile(ratios, 0.9),
        "gap": gap,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", choices=sorted({case.family for case in CASES}))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cpu", action="store_true", help="one thread, CPU time")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args()
    threads = 1 if options.cpu else options.threads
    torch.set_num_threads(threads)
    if not options.json:
        versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
        print(f"{versions}, fp32, {'CPU time, ' if options.cpu else ''}{threads} threads")
        print(f"{'family':20}{'size':30}{'ours ms':>9}{'theirs ms':>11}{'ratio':>8}  10-90 %")
    for case in CASES:
        if options.family and case.family not in options.family:
            continue
        if case.family not in families.catalogue():
            print(f"{case.family:20}skipped: not in the catalogue", file=sys.stderr)
            continue
        row = measure(case, options.repeats, options.cpu)
        if options.json:
            print(json.dumps(row), flush=True)
        else:
            print(f"{row['family']:20}{row['size']:30}{row['ours_ms']:9.1f}{row['theirs_ms']:11.1f}{row['ratio']:8.2f}"
                  f"  {row['ratio_10']:.2f}-{row['ratio_90']:.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
