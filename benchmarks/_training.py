"""Training steps of `bench_gpu.py`: anyformer against transformers, timm or diffusers, compiled and eager.

Both sides start with the same weights and see the same batch, without dropout, with bf16 autocast, gradient clipping to
norm 1 and fused AdamW. Rows "training" compare `Trainer.launch` with the usual loop around the peer's model. Rows "own
loop" use that loop (`model(**batch).loss.backward()`) for both models. Large inputs (images, audio) are on the device;
token ids are copied from pinned memory.
"""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from _turns import (
    allocated,
    empty_cache,
    exclusive,
    median_ms,
    peak_GB,
    profile,
    scratch_folder,
    take_turns,
    wait,
    warm_up,
)
from history import Row, compare, round_off
from torch import Tensor

import anyformer as af
from anyformer.data import Data, PythonDocs
from anyformer.data.loader import StepBatches
from anyformer.objectives.causal import NextToken
from anyformer.objectives.ctc import CTC
from anyformer.objectives.diffuse import Diffuse
from anyformer.objectives.images import ClassifyImage
from anyformer.objectives.masked import Masked
from anyformer.objectives.match import MatchImage
from anyformer.objectives.objective import Objective
from anyformer.objectives.span_corruption import SpanCorruption
from anyformer.objectives.transcribe import Transcribe
from anyformer.train.optim import AdamW
from anyformer.train.run import Batch, Run
from anyformer.train.trainer import Trainer

PRECISION = "bf16-stream"  # as in our recipes; the peers' residual stream is fp32, the default of autocast
WARM = 18  # steps before timing: enough to compile, choose kernels and capture a CUDA graph
TURNS = 5
SLOW = 1.0  # seconds: slower steps launch about 100,000 kernels and are not profiled, which would take minutes
CLOSE = 1e-2  # relative tolerance of the first losses in bf16
GOAL = {"compiled": 1.1, "eager": 1.0}
FIRST_STEP, WARM_START = 12.0, 3.0  # goals in seconds: first step with cold and with warm compiler caches
NANOGPT = 493_000, 22.85  # tokens/s and GB, as stated by the maintainers: GPT-2 124M on one H200

Tensors = dict[str, Tensor]
Make = Callable[[Any, int, int, torch.Generator], tuple[Tensors, Tensors]]  # config, B, T -> (ours, theirs)


@dataclasses.dataclass(frozen=True)
class Family:
    """A model to train: its published class and config, the objective, and two batch sizes (B, T)."""

    title: str
    architecture: str
    objective: Callable[[Any], Objective]
    make: Make
    full: tuple[int, int]
    small: tuple[int, int]
    gb: tuple[int, int]  # device memory of both sides for `full` and `small`, for scheduling
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    tiny: dict[str, Any] = dataclasses.field(default_factory=dict)
    timm: str | None = None
    library: str = "transformers"
    autocast: bool = True  # False: the peer fails under autocast and gets bf16 weights instead
    compiles: bool = True  # False: the peer runs eagerly, because compiling its loop over tokens takes minutes


# -- batches ----------------------------------------------------------------------------------------------------------


def ids(draw: torch.Generator, most: int, *shape: int) -> Tensor:
    return torch.randint(5, most, shape, generator=draw)


def causal(config: Any, B: int, T: int, draw: torch.Generator) -> tuple[Tensors, Tensors]:
    tokens = ids(draw, config.vocab_size, B, T)
    return {"input_ids": tokens}, {"input_ids": tokens, "labels": tokens}


def masked(config: Any, B: int, T: int, draw: torch.Generator) -> tuple[Tensors, Tensors]:
    """Mask 15 % of the tokens. Our batch has labels only for those; the peer's has -100 for all others."""
    tokens = ids(draw, config.vocab_size, B, T)
    number = -(-round(0.15 * B * T) // 64) * 64 if B * T > 1000 else B * T // 8
    places = torch.randperm(B * T, generator=draw)[:number].sort().values
    labels = ids(draw, config.vocab_size, number)
    everywhere = torch.full((B * T,), -100).index_copy(0, places, labels).view(B, T)
    ours = {"input_ids": tokens, "places": places, "labels": labels}
    return ours, {"input_ids": tokens, "labels": everywhere}


def pair(config: Any, B: int, T: int, draw: torch.Generator) -> tuple[Tensors, Tensors]:
    """Span corruption: T input tokens, T * 2 / 9 target tokens."""
    batch = {"input_ids": ids(draw, config.vocab_size, B, T), "labels": ids(draw, config.vocab_size, B, T * 2 // 9)}
    return batch, batch


def pictures(config: Any, B: int, T: int, draw: torch.Generator) -> tuple[Tensors, Tensors]:
    batch = {"pixel_values": torch.randn(B, 3, T, T, generator=draw), "labels": ids(draw, config.num_labels, B)}
    return batch, batch


def captions(config: Any, B: int, T: int, draw: torch.Generator) -> tuple[Tensors, Tensors]:
    text = config.text_config
    tokens = ids(draw, min(text.vocab_size, 40_000) - 2, B, text.max_position_embeddings)
    tokens[:, -1] = text.eos_token_id
    batch = {"pixel_values": torch.randn(B, 3, T, T, generator=draw), "input_ids": tokens}
    return batch, {**batch, "return_loss": True}  # type: ignore[dict-item]


def mel(config: Any, B: int, T: int, draw: torch.Generator) -> tuple[Tensors, Tensors]:
    frames = 2 * config.max_source_positions
    features = torch.randn(B, config.num_mel_bins, frames, generator=draw)
    batch = {"input_features": features, "labels": ids(draw, config.vocab_size, B, T)}
    return batch, batch


def sound(config: Any, B: int, T: int, draw: torch.Generator) -> tuple[Tensors, Tensors]:
    batch = {"input_values": torch.randn(B, T, generator=draw), "labels": ids(draw, 31, B, max(2, T // 8000))}
    return batch, batch


def noisy(config: Any, B: int, T: int, draw: torch.Generator) -> tuple[Tensors, Tensors]:
    """Latents of T x T. The peer's batch already contains the noise: DiT's linear schedule of 1,000 steps."""
    shape, labels = (B, config.in_channels, T, T), ids(draw, config.num_embeds_ada_norm, B)
    picture, noise = (torch.randn(shape, generator=draw) for _ in range(2))
    step = torch.randint(0, 1000, (B,), generator=draw)
    kept = (1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)).cumprod(0)[step].float().view(B, 1, 1, 1)
    ours = {"pixel_values": picture, "noise": noise, "moment": (step + 0.5) / 1000, "class_labels": labels}
    mixed = kept.sqrt() * picture + (1 - kept).sqrt() * noise
    return ours, {"hidden_states": mixed, "timestep": step, "class_labels": labels, "noise": noise}


def names_of(number: int) -> tuple[str, ...]:
    return tuple(map(str, range(number)))


def classify(config: Any) -> Objective:
    return ClassifyImage(labels=names_of(config.num_labels), image_size=(config.image_size,) * 2)


def match(config: Any) -> Objective:
    return MatchImage(image_size=(config.vision_config.image_size,) * 2)


def diffuse(config: Any) -> Objective:
    labels, C = names_of(config.num_embeds_ada_norm), config.in_channels
    return LatentDiffuse(labels=labels, image_size=(config.sample_size,) * 2, mean=(0.5,) * C, std=(0.5,) * C)


class LatentDiffuse(Diffuse):
    """Diffusion of precomputed latents: a batch contains latents instead of images."""

    def check(self) -> None: ...


MIXTRAL = {
    "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4,
    "intermediate_size": 2048, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
    "max_position_embeddings": 4096, "sliding_window": None,
}  # fmt: skip
LLAMA = {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}  # fmt: skip
DIT = {
    "num_attention_heads": 12, "attention_head_dim": 64, "in_channels": 4, "out_channels": 4, "num_layers": 12,
    "sample_size": 32, "patch_size": 2, "num_embeds_ada_norm": 1000,
}  # fmt: skip
T5 = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12,
      "decoder_start_token_id": 0}  # fmt: skip
WHISPER = {"d_model": 768, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 12,
           "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}  # fmt: skip
WAV2VEC2 = {"vocab_size": 32, "ctc_loss_reduction": "mean", "apply_spec_augment": False}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TINY_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 200, "n_positions": 256}
TINY_LLAMA = {**SMALL, "num_key_value_heads": 1, "vocab_size": 200}
TINY_MIXTRAL = {**TINY_LLAMA, "num_local_experts": 4}
TINY_MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 200, "state_size": 4}
TINY_T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
           "vocab_size": 200}  # fmt: skip
TINY_WHISPER = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
                "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 200,
                "max_source_positions": 50, "decoder_start_token_id": 1, "pad_token_id": 0, "bos_token_id": 1,
                "eos_token_id": 2}  # fmt: skip

FAMILIES = (
    Family("GPT-2 124M", "GPT2LMHeadModel", lambda c: NextToken(apart=False), causal, (32, 1024), (8, 128), (75, 10),
           tiny=TINY_GPT2),
    Family("ViT-B/16", "ViTForImageClassification", classify, pictures, (128, 224), (8, 224), (38, 12),
           {"num_labels": 1000}, {**SMALL, "num_labels": 10, "image_size": 32}, timm="vit_base_patch16_224"),
    Family("BERT-base", "BertForMaskedLM", lambda c: Masked(), masked, (64, 512), (8, 128), (50, 10),
           tiny={**SMALL, "vocab_size": 200}),
    Family("Llama-1B", "LlamaForCausalLM", lambda c: NextToken(apart=False), causal, (4, 2048), (8, 128), (95, 52),
           LLAMA, TINY_LLAMA),
    Family("CLIP ViT-B/32", "CLIPModel", match, captions, (256, 224), (16, 224), (45, 12), {},
           {"text_config": {**SMALL, "vocab_size": 200, "max_position_embeddings": 16, "eos_token_id": 199},
            "vision_config": {**SMALL, "image_size": 64}}),
    Family("Swin-T", "SwinForImageClassification", classify, pictures, (128, 224), (8, 224), (45, 8),
           {"num_labels": 1000}, {"num_labels": 10, "image_size": 32, "patch_size": 2, "embed_dim": 16,
                                  "window_size": 4, "depths": [2, 2], "num_heads": [1, 2]},
           timm="swin_tiny_patch4_window7_224"),
    Family("T5-base", "T5ForConditionalGeneration", lambda c: SpanCorruption(), pair, (48, 512), (8, 144), (55, 14),
           T5, TINY_T5),
    Family("Mixtral 8 x 50M", "MixtralForCausalLM", lambda c: NextToken(apart=False), causal, (8, 1024), (8, 128),
           (50, 26), MIXTRAL, TINY_MIXTRAL),
    Family("Whisper-small", "WhisperForConditionalGeneration", lambda c: Transcribe(form="mel"), mel, (16, 128),
           (8, 32), (50, 30), WHISPER, TINY_WHISPER),
    Family("wav2vec2-base", "Wav2Vec2ForCTC", lambda c: CTC(), sound, (16, 160_000), (8, 16_000), (50, 10), WAV2VEC2,
           {**SMALL, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}),
    Family("DeBERTa-base", "DebertaForMaskedLM", lambda c: Masked(), masked, (16, 512), (8, 128), (60, 14),
           {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0,
            "position_biased_input": False, "max_relative_positions": -1}, {**SMALL, "vocab_size": 200},
           autocast=False),
    Family("DiT-B/2", "DiTTransformer2DModel", diffuse, noisy, (128, 32), (8, 32), (40, 10), DIT,
           {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2, "sample_size": 8,
            "num_embeds_ada_norm": 10}, library="diffusers"),
    Family("Mamba-130m", "MambaForCausalLM", lambda c: NextToken(apart=False), causal, (8, 256), (8, 64), (45, 20),
           {}, TINY_MAMBA, compiles=False),
)  # fmt: skip


# -- the two sides ----------------------------------------------------------------------------------------------------


def without_dropout(config: Any) -> Any:
    """Set every dropout to 0: the two sides draw different random numbers."""
    for part in (config, *(getattr(config, name, None) for name in ("text_config", "vision_config"))):
        for name, value in list(vars(part).items()) if part is not None else ():
            if "drop" in name and isinstance(value, float):
                setattr(part, name, 0.0)
    return config


def save_theirs(family: Family, folder: Path, options: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Save the peer's model with random weights in a folder that both sides read; return its config."""
    wanted = {**family.config, **(family.tiny if options.tiny else {})}
    try:
        library = importlib.import_module(family.library)
    except ImportError:  # without diffusers, our DiT runs without a peer
        changes = {"head.out_channels": wanted["out_channels"], "encoder.depth": wanted["num_layers"]}
        af.save(af.build(af.override(af.spec("dit-b-2"), changes), seed=0, device=options.device), folder)
        return SimpleNamespace(**{**wanted, "sample_size": 32, "num_embeds_ada_norm": 1000})
    torch.manual_seed(0)
    if family.library == "diffusers":
        model = getattr(library, family.architecture)(**wanted)
        config = model.config
        for parameter in model.parameters():  # some are initialised to 0, which would hide mistakes
            torch.nn.init.normal_(parameter, std=0.02)
    else:
        config = without_dropout(getattr(library, family.architecture).config_class(**wanted))
        with torch.device(options.device):
            model = getattr(library, family.architecture)(config)
    (model if dtype == torch.float32 else model.to(dtype)).save_pretrained(folder)
    return config


def load_theirs(family: Family, folder: Path, options: Any, dtype: torch.dtype = torch.float32) -> Any:
    kind = getattr(importlib.import_module(family.library), family.architecture)
    more = {"attn_implementation": "sdpa"} if getattr(kind, "_supports_sdpa", False) else {}
    model = kind.from_pretrained(folder, **more).to(options.device)
    model = model if model.dtype == dtype else model.to(dtype)
    for module in model.modules():  # label dropout of classifier-free guidance
        if type(module).__name__ == "LabelEmbedding":
            module.dropout_prob = 0.0
    return model


def place(batch: Tensors, device: str) -> Tensors:
    """Move float inputs to the device and token ids to pinned memory, as a data loader does."""
    if device == "cpu":
        return batch
    return {
        name: value if not isinstance(value, Tensor) or value.dim() == 1
        else value.to(device) if value.is_floating_point() else value.pin_memory()
        for name, value in batch.items()
    }  # fmt: skip


def our_step(
    objective: Objective, folder: Path, batch: Tensors, compiled: bool, device: str
) -> Callable[[], Callable[[], float]]:
    """Return a function that runs one step of our trainer and returns a function that reads the loss."""
    model = af.load(folder, device=device, offline=True).train()
    examples = len(next(iter(batch.values())))
    run = Run(
        name="bench", model=model.spec, data=Data(train=PythonDocs()), objective=objective, steps=10**6,
        batch=Batch(examples=examples), precision=PRECISION, compile=compiled, optimizer=AdamW(lr=1e-4),
    )  # fmt: skip
    trainer = Trainer(run, folder / "run", model=model, feed=lambda step: None, device=device)  # type: ignore[arg-type,return-value]
    trainer.core.train()

    def step() -> Callable[[], float]:
        launched = trainer.launch(StepBatches(trainer.step, [batch], [True], examples, examples))
        trainer.step += 1
        return lambda: sum(launched.read()[: len(launched.names)])

    return step


def loss_of(model: Any, batch: dict[str, Any]) -> Tensor:
    """The loss of a batch: transformers and anyformer return it, timm returns logits, diffusers the predicted noise."""
    if "noise" in batch:
        inputs = {name: value for name, value in batch.items() if name != "noise"}
        return F.mse_loss(model(**inputs).sample.float(), batch["noise"])
    if hasattr(model, "config") or hasattr(model, "spec"):
        return model(**batch).loss
    return F.cross_entropy(model(batch["pixel_values"]), batch["labels"])


def own_loop(model: Any, batch: Tensors, compiled: bool, device: str) -> Callable[[], Callable[[], float]]:
    """Return a hand-written training step for the model of any library."""
    model.train()
    mixed = next(model.parameters()).dtype == torch.float32
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    call = torch.compile(model) if compiled else model

    def step() -> Callable[[], float]:
        here = {name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
                for name, value in batch.items()}  # fmt: skip
        with torch.autocast(device, torch.bfloat16, enabled=mixed):
            loss = loss_of(call, here)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach().item

    return step


# -- a case -----------------------------------------------------------------------------------------------------------


def label(family: Family, size: str, group: str) -> str:
    B, T = getattr(family, size)
    batch = f"{B} x {T}" if family.make in (causal, masked, pair) else f"{B} examples"
    return f"{group}: {family.title}, {batch}"


def row_names(family: Family, size: str, group: str = "training") -> dict[tuple[str, str], str]:
    """(variant, peer) -> name. `group` is "training" (our trainer) or "own loop" (one loop for both sides)."""
    peers = [family.library, *(["timm"] if family.timm else [])]
    return {
        (variant, peer): f"{label(family, size, group)}, {variant}{', timm' if peer == 'timm' else ''}"
        for variant in GOAL for peer in peers
    }  # fmt: skip


def extra_names(family: Family, size: str) -> list[str]:
    if size != "full":
        return []
    names = []
    if family.title == "GPT-2 124M":
        names = [
            f"{label(family, size, 'training')}, {what}"
            for what in ("nanoGPT", "goal of 600k tokens/s", "nanoGPT's memory")
        ]
    if family.title in ("BERT-base", "Llama-1B", "ViT-B/16"):
        names = [f"first calls: {family.title}, first compiled training step, {what}" for what in ("cold", "warm")]
    return names


def measure(family: Family, size: str, group: str, options: Any) -> Iterator[Row]:
    """Yield the rows of one family, batch size and group, each when it is measured."""
    B, T = getattr(family, size)
    if options.tiny:
        B, T = 2, 36 if family.make in (causal, masked, pair, mel) else 8000 if family.make is sound else T
    with scratch_folder(options.lock and options.lock.parent) as name:
        folder = Path(name)
        config = save_theirs(family, folder, options)
        if options.tiny and family.make in (pictures, captions, noisy):
            T = getattr(config, "sample_size", None) or getattr(config, "vision_config", config).image_size
        batches = family.make(config, B, T, torch.Generator().manual_seed(1))
        mine, other = (place(batch, options.device) for batch in batches)
        for variant in ("eager", "compiled"):
            if time.time() > options.until:
                return
            compiled = variant == "compiled" and not options.tiny
            yield from measure_variant(family, size, group, variant, compiled, folder, config, mine, other, options)
            empty_cache()


def measure_variant(
    family: Family, size: str, group: str, variant: str, compiled: bool, folder: Path, config: Any, mine: Tensors,
    other: Tensors, options: Any,
) -> Iterator[Row]:  # fmt: skip
    def peer(name: str) -> Any:
        if name == "timm":
            sizes = {"num_classes": config.num_labels, "img_size": config.image_size}
            return importlib.import_module("timm").create_model(family.timm, **sizes).to(options.device)
        return load_theirs(family, folder, options, torch.float32 if family.autocast else torch.bfloat16)

    def ours() -> Callable[[], Callable[[], float]]:
        if group == "training":
            return our_step(family.objective(config), folder, mine, compiled, options.device)
        return own_loop(af.load(folder, device=options.device, offline=True), other, compiled, options.device)

    makers = {"ours": ours}
    theirs_compiled = compiled and family.compiles
    names = row_names(family, size, group)
    for _, name in names:
        makers.setdefault(name, lambda name=name: own_loop(peer(name), other, theirs_compiled, options.device))  # type: ignore[misc]
    steps: dict[str, Any] = {}
    first, losses, peaks, absent = {}, {}, {}, {}
    for side, make in makers.items():
        before = allocated()
        try:
            step = make()
            start = time.perf_counter()
            losses[side] = step()()
            wait()
            first[side] = time.perf_counter() - start
        except Exception as error:
            if side == "ours":
                raise
            absent[side] = f"no figure for {side}: {type(error).__name__}: {error}"[:300].replace("\n", " ")
            continue
        steps[side] = step
        peaks[side] = peak_GB(step, allocated() - before)  # before capture: a CUDA graph has a separate memory pool
    with exclusive(options.lock):  # not during the first step, which mostly compiles
        for step in steps.values():
            warm_up(step, 1 if options.tiny else WARM)
        spans = take_turns(steps, 2 if options.tiny else TURNS, 0.0 if options.tiny else 0.2)
        work = {side: profile(step) if min(spans[side]) < SLOW else None for side, step in steps.items()}
    for (which, side), name in names.items():
        if which != variant:
            continue
        goal = 1.15 if (variant, side) == ("compiled", "timm") and family.title.startswith("ViT") else GOAL[variant]
        if side in absent:
            ours = round_off(median_ms(spans["ours"]))
            yield Row(name, "ms", ours, None, "no peer here", None, None, None, goal, absent[side])
            continue
        both = ("ours", side)
        notes = [f"{' / '.join(str(first_digits(first[s])) for s in both)} s first step"]
        if work["ours"] and work[side]:
            notes.insert(0, f"{' / '.join(f'{work[s].kernel_ms:.1f}' for s in both)} ms in kernels, "
                            f"{' / '.join(f'{work[s].launches:,}' for s in both)} launches, "
                            f"{' / '.join(f'{peaks[s]:.1f}' for s in both)} GB")  # fmt: skip
            if peaks["ours"] > peaks[side]:
                notes.append("**more memory**")
        if not family.autocast:
            notes.append(f"{side} fails under autocast: its weights are bf16")
        if compiled != theirs_compiled:
            notes.append(f"{side} eager: its loop over tokens does not compile within minutes")
        if side != "timm" and abs(losses["ours"] - losses[side]) > CLOSE * abs(losses[side]):
            notes.append(f"**first losses differ**: {losses['ours']:.4f} / {losses[side]:.4f}")
        yield compare(name, "ms", spans["ours"], spans[side], side, goal, note="; ".join(notes))
    if variant == "compiled" and group == "training":
        yield from extra_rows(family, size, spans["ours"], first["ours"], peaks["ours"], folder, options)


def extra_rows(
    family: Family, size: str, spans: list[float], first: float, peak: float | None, folder: Path, options: Any
) -> Iterator[Row]:
    names = extra_names(family, size)
    if family.title == "GPT-2 124M" and names:
        B, T = family.full
        rates = sorted(B * T / each for each in spans)
        for name, other, peer in ((names[0], NANOGPT[0], "nanoGPT, given"), (names[1], 600_000, "goal")):
            ratios = [rate / other for rate in rates]
            yield Row(name, "tokens/s", round(rates[len(rates) // 2]), other, peer,
                      *(round(ratios[i], 3) for i in (len(ratios) // 2, 0, -1)), 1.0)  # fmt: skip
        if peak is not None:
            ratio = round(NANOGPT[1] / peak, 3)
            yield Row(names[2], "GB", peak, NANOGPT[1], "nanoGPT, given", ratio, None, None, 1.0)
    elif names:
        yield against_goal(names[0], "s", first, FIRST_STEP, "while other cases compile")
        flags = [sys.executable, str(Path(__file__).with_name("bench_gpu.py")), "--again", family.title, "--folder",
                 str(folder), "--device", options.device, *(["--tiny"] if options.tiny else [])]  # fmt: skip
        remaining = max(1.0, options.until - time.time())
        done = subprocess.run(flags, capture_output=True, text=True, check=True, timeout=remaining)
        yield against_goal(names[1], "s", float(done.stdout.split()[-1]), WARM_START, "a second process, same caches")


def against_goal(name: str, unit: str, ours: float, goal: float, note: str = "") -> Row:
    """Return a row that compares a time with its goal."""
    return Row(name, unit, round_off(ours), goal, "goal", round(goal / ours, 3), None, None, 1.0, note)


def first_digits(value: float) -> float:
    return float(f"{value:.2g}")


def first_step_again(title: str, folder: Path, options: Any) -> float:
    """Seconds of the first step in a new process with warm compiler caches."""
    family = next(family for family in FAMILIES if family.title == title)
    kind = getattr(importlib.import_module(family.library), family.architecture).config_class
    config, (B, T) = kind.from_pretrained(folder), family.full
    if options.tiny:
        B, T = 2, config.image_size if family.make is pictures else 36
    batch = place(family.make(config, B, T, torch.Generator().manual_seed(1))[0], options.device)
    step = our_step(family.objective(config), folder, batch, not options.tiny, options.device)
    start = time.perf_counter()
    step()()
    return time.perf_counter() - start
