"""Adapter files in the layout of the PEFT library: adapter_config.json and adapter_model.safetensors.

    save_adapter(model, "adapter")             # only the trained weights, not the base model; PEFT can load it
    load_adapter(base, "adapter")              # load an adapter of anyformer or PEFT into a base model
    af.load("adapter")                         # load the base model that the adapter names, and the adapter

Names are as in the published class (or our addresses, if there is none), so the family's weight rules apply to
adapters: a rule that moves rows of W moves the rows of B (out, rank) in the same way. A rule that does more cannot be
applied to an adapter. If one published layer is several of ours (GPT-2's c_attn), their adapters are concatenated: the
ranks add up, and B is 0 for rows of layers without that rank. Loading removes these zeros.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from anyformer import families
from anyformer.checkpoint import ADAPTER, error_context, load_as, read_spec, save_description
from anyformer.models import Model, TransformerModule
from anyformer.specs.messages import quote
from anyformer.transforms.lora import NAMES, Adapter, LoRA, adapted_layers, adopt
from anyformer.weights import hub
from anyformer.weights.filling import Report, finite
from anyformer.weights.io import Checkpoint, read_json, write_checkpoint, write_json
from anyformer.weights.rules import Rename, Repeat, RuleStep, plan

M = TypeVar("M", bound=TransformerModule)

STEM = "adapter_model"
PREFIX = "base_model.model."  # PEFT's prefix of every name
A, B = "lora_A.weight", "lora_B.weight"

# end of a class name -> PEFT's task_type
TASKS = {
    "LMHeadModel": "CAUSAL_LM",
    "ForCausalLM": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}
# fields of adapter_config.json that are used, or that do not change the adapter; all others must be off
KNOWN_FIELDS = (
    "peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "r", "target_modules", "exclude_modules", "lora_alpha", "lora_dropout", "fan_in_fan_out", "bias", "use_rslora",
    "modules_to_save", "init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern",
    "ensure_weight_tying", "megatron_core", "qalora_group_size", "runtime_config", "eva_config", "loftq_config",
)  # fmt: skip
STARTS = (None, True, False, "gaussian", "eva", "orthogonal")  # other methods also change the base model's weights


def steps_of(model: TransformerModule) -> list[RuleStep]:
    """Return the steps that map published tensors to ours; tied tensors appear under each of their names."""
    spec = model.spec
    every = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    names = [name for name in every if name.rpartition(".")[2] not in NAMES]
    if not is_published(spec):
        return [RuleStep(Rename(name, name), [name], [name]) for name in names]
    family = families.find(spec.family)
    return plan(family.rules(spec), names, family.prefix_of(spec.architecture))[0]


def is_published(spec: Model) -> bool:
    """Whether this description can be written as a published class."""
    try:
        return bool(spec.family and families.find(spec.family).write(spec))
    except ValueError:
        return False


def is_transposed(step: RuleStep, rows: list[int]) -> bool:
    """Whether the step stores matrices with these numbers of rows transposed. Raises ValueError if its rule does more
    than move rows."""
    width = sum(rows) + 1  # differs from every number of rows
    try:
        stored = step.rule.save([torch.empty(n, width, device="meta") for n in rows])
    except RuntimeError:
        stored = []
    sides = {tuple(side == width for side in tensor.shape) for tensor in stored}
    if isinstance(step.rule, Repeat) or sides not in ({(True, False)}, {(False, True)}):
        raise ValueError(f"PEFT's layout cannot store an adapter of {address_of(step.targets[0])}")
    return sides == {(True, False)}


def address_of(name: str) -> str:
    """Return the layer's address, given the name of its weight."""
    return name.removesuffix(".weight")


def rows_of(model: TransformerModule, step: RuleStep) -> list[int]:
    return [model.get_parameter(target).shape[0] for target in step.targets]


# -- saving ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def save_adapter(
    model: TransformerModule,
    folder: str | Path,
    base: str | None = None,
    whole: Callable[[Tensor], Tensor] = Tensor.detach,
    write: bool = True,
) -> None:
    """Write the adapter in PEFT's layout, with the description and the tokenizer.

    `base` is the name of its base model (default: the model that was loaded). With several processes, all call this
    function, gather tensors with `whole`, and one writes."""
    layers, folder = adapted_layers(model), Path(folder)
    if not layers:
        raise ValueError("this model has no adapters")
    steps = steps_of(model)
    tensors: dict[str, Tensor] = {}
    scales: dict[str, float] = {}  # published layer with an adapter -> alpha / rank
    replaced: dict[str, None] = {}  # published modules that were trained without an adapter
    flipped = False
    for step in steps:
        if any(address_of(target) in layers for target in step.targets):
            flip, scale, a, parts = export_adapter(model, step, layers, whole)
            flipped |= flip
            for module, b in zip(map(address_of, step.sources), parts, strict=False):
                scales[module] = scale
                tensors |= {f"{PREFIX}{module}.{A}": a.clone(), f"{PREFIX}{module}.{B}": b}
        elif any(model.get_parameter(name).requires_grad or name in model.fresh for name in step.targets):
            replaced |= dict.fromkeys(source.rpartition(".")[0] for source in step.sources)
    within = tuple(f"{module}." for module in replaced)
    if lost := [module for module in scales if f"{module}.".startswith(within)]:
        raise ValueError(f"PEFT's layout cannot store other trained weights next to the adapter of {lost[0]}")
    for step in steps:  # all tensors of a replaced module, frozen ones included, under each of their names
        if any(source.startswith(within) for source in step.sources):
            stored = step.rule.save([whole(model.get_parameter(target)) for target in step.targets])
            stored = stored * len(step.sources) if step.rule.needed < len(step.sources) else stored
            tensors |= {f"{PREFIX}{name}": t.clone().contiguous() for name, t in zip(step.sources, stored, strict=True)}
    ends = (task for end, task in TASKS.items() if model.spec.architecture.endswith(end))
    content = {
        "peft_type": "LORA",
        "task_type": next(ends, None),
        "inference_mode": True,
        "bias": "none",
        "base_model_name_or_path": model.origin if base is None else base,
        **sizes({module: tensors[f"{PREFIX}{module}.{A}"].shape[0] for module in scales}, scales),
        "lora_dropout": model.__dict__["_lora"].dropout,
        "fan_in_fan_out": flipped,
        "target_modules": short([*scales], [address_of(source) for step in steps for source in step.sources]),
        "modules_to_save": [*replaced] or None,
    }
    if not write:
        return
    write_checkpoint(folder, tensors, stem=STEM)
    save_description(model, folder)
    write_json(folder / ADAPTER, content)


def export_adapter(
    model: TransformerModule, step: RuleStep, layers: Mapping[str, Any], whole: Callable[[Tensor], Tensor]
) -> tuple[bool, float, Tensor, list[Tensor]]:
    """Return whether published weights are transposed, the scale, A (rank, in), and B (out, rank) of each layer."""
    rows = rows_of(model, step)
    flip = is_transposed(step, rows)
    chosen = {i: layers[address_of(t)] for i, t in enumerate(step.targets) if address_of(t) in layers}
    scale = next(iter(chosen.values())).forward.scale
    a = torch.cat([whole(layer.lora_a) for layer in chosen.values()])
    blocks, start = [a.new_zeros(size, a.shape[0]) for size in rows], 0
    for i, layer in chosen.items():
        b = whole(layer.lora_b)
        blocks[i][:, start : start + b.shape[1]] = b * (layer.forward.scale / scale)
        start += b.shape[1]
    return flip, scale, a, [(b.t() if flip else b).contiguous() for b in step.rule.save(blocks)]


def sizes(ranks: Mapping[str, int], scales: Mapping[str, float]) -> dict[str, Any]:
    """Return the most common rank and alpha, and patterns for layers with different ones."""
    pairs = {module: (rank, scales[module] * rank) for module, rank in ranks.items()}
    (rank, alpha), _ = Counter(pairs.values()).most_common(1)[0]
    return {
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {re.escape(module): r for module, (r, _) in pairs.items() if r != rank},
        "alpha_pattern": {re.escape(module): value for module, (_, value) in pairs.items() if value != alpha},
    }


def short(chosen: list[str], modules: list[str]) -> list[str]:
    """Return the last words of the chosen names if these identify them among all modules; otherwise the names."""
    words = dict.fromkeys(name.rpartition(".")[2] for name in chosen)
    return [*words] if {m for m in modules if m.rpartition(".")[2] in words} == {*chosen} else chosen


# -- loading -----------------------------------------------------------------------------------------------------------


def load_adapted(
    folder: Path,
    base: str | Path | None,
    *,
    dtype: str | torch.dtype,
    device: torch.device,
    offline: bool,
    architecture: str | None,
) -> tuple[TransformerModule, Report]:
    """Load the base model of an adapter folder, and the adapter into it."""
    named = config_of(folder).get("base_model_name_or_path") if base is None else base
    if not named:
        raise ValueError(f"{folder}: the adapter does not name its base model; pass base= (--base)")
    try:
        home = hub.resolve(named, offline=offline)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{folder}: {error}, the base model of this adapter; to use a different one, pass base= (--base)"
        ) from None
    described = (folder / "spec.json").is_file()
    spec = read_spec(folder if described else home, architecture)
    model, report = load_as(spec, home, dtype=dtype, device=device, strict=False)
    load_adapter(model, folder)
    if model.fresh or report.nonfinite or (report.unexpected and not described):
        raise ValueError(f"{home}: the base model does not fit the adapter {folder}: {report}")
    model.origin = str(named)
    if (folder / "tokenizer_config.json").is_file():
        model.folder = folder
    return model.eval(), report


def config_of(folder: Path) -> dict[str, Any]:
    """Read adapter_config.json. Raises ValueError if a field is not supported."""
    path = folder / ADAPTER
    if not path.is_file():
        raise ValueError(f"{folder}: contains no {ADAPTER}")
    config = read_json(path)
    with error_context(path):
        if not isinstance(config, dict):
            raise ValueError(f"expected an object, got a {type(config).__name__}")
        if config.get("peft_type") != "LORA":
            raise ValueError(f"peft_type={quote(config.get('peft_type'))} is not supported; valid: 'LORA'")
        for name, value in config.items():
            if name not in KNOWN_FIELDS and value not in (None, False, {}, []):
                raise ValueError(f"{name}={quote(value)} is not supported: only adapters of the form W + B A are")
        if (start := config.get("init_lora_weights")) not in STARTS:
            raise ValueError(f"init_lora_weights={quote(start)} is not supported: it also changes the base's weights")
    return config


@torch.no_grad()
def load_adapter(model: M, folder: str | Path) -> M:
    """Load the adapters of a folder into a base model without adapters. Changes the model in place and returns it. If
    the adapters do not fit, raises ValueError without changing the model."""
    folder = Path(folder)
    config = config_of(folder)
    with Checkpoint(folder, stem=STEM) as stored, error_context(folder):
        pairs, others = sorted_out(stored.names)
        adapters: dict[str, Adapter] = {}
        values: dict[str, Tensor] = {}
        unused = {*pairs, *others}
        for step in steps_of(model):
            if any(address_of(source) in pairs for source in step.sources):
                unused -= {*map(address_of, step.sources)}
                adapters |= import_adapter(model, step, pairs, stored, config)
            elif any(source in others for source in step.sources):
                unused -= {*step.sources}
                values |= read_replacements(model, step, others, stored)
        if unused or not adapters:
            what = "; ".join(f"it has no layer {name}" for name in sorted(unused)[:5]) or f"no {A} is stored"
            raise ValueError(f"the adapter does not fit this model: {what}")
        first = next(iter(adapters.values()))
        rank, dropout = first.a.shape[0], float(config.get("lora_dropout") or 0.0)
        learnt: dict[str, Any] = {"targets": tuple(adapters), "also": tuple(values), "fresh": False}
        adopt(model, LoRA(rank=rank, alpha=first.scale * rank, dropout=dropout, **learnt), adapters, [*values])
        untie(model, values)
        for name, tensor in values.items():
            model.get_parameter(name).copy_(tensor)
    model.fresh = model.fresh - values.keys()
    return model


def sorted_out(names: list[str]) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the stored names of A and B by published module, and the names of tensors that replace the base's."""
    pairs: dict[str, dict[str, str]] = {}
    others: dict[str, str] = {}
    for stored in names:
        name = stored.removeprefix(PREFIX).replace(".base_layer.", ".")
        module, mark, end = name.rpartition(".lora_")
        if mark and f"lora_{end}" in (A, B):
            pairs.setdefault(module, {})[f"lora_{end}"] = stored
        elif mark:
            raise ValueError(f"{stored} is not supported: only adapters of linear layers are")
        else:
            others[name] = stored
    for module, pair in pairs.items():
        if missing := {A, B} - pair.keys():
            raise ValueError(f"{module}.{min(missing)} is missing")
    return pairs, others


def import_adapter(
    model: TransformerModule,
    step: RuleStep,
    pairs: Mapping[str, Mapping[str, str]],
    stored: Checkpoint,
    config: Mapping[str, Any],
) -> dict[str, Adapter]:
    """Convert the adapters of published layers to adapters of our layers, by address."""
    for address in map(address_of, step.targets):
        if type(model.get_submodule(address)) is not nn.Linear or model.spec.shares(address):
            what = "shares its weights with another layer" if model.spec.shares(address) else "is not a linear layer"
            raise ValueError(f"{step.sources[0]}: {address} {what} and cannot have an adapter")
    rows, width = rows_of(model, step), model.get_parameter(step.targets[0]).shape[1]
    flip = is_transposed(step, rows)
    whole = step.rule.save([torch.empty(n, width, device="meta") for n in rows])
    names = [pairs.get(module) for module in map(address_of, step.sources)]
    ranks = [0 if pair is None else stored.shape(pair[A])[0] for pair in names]
    scales = [scale_of(config, address_of(source), rank) for source, rank in zip(step.sources, ranks) if rank]
    a, blocks = [], []
    for i, (pair, tensor) in enumerate(zip(names, whole, strict=False)):
        out = tensor.shape[flip]
        block = torch.zeros(out, sum(ranks))
        if pair is not None:
            a.append(read(stored, pair[A], (ranks[i], width)))
            ratio = scales[len(a) - 1] / scales[0]
            block[:, sum(ranks[:i]) : sum(ranks[: i + 1])] = read(stored, pair[B], (out, ranks[i])) * ratio
        blocks.append(block.t() if flip else block)
    parts = step.rule.load(blocks, [torch.Size((n, sum(ranks))) for n in rows])
    used = torch.stack([part.abs().amax(0) > 0 for part in parts])  # (layers of ours, rank)
    used |= ~used.any(0)  # if B is 0 for all layers (not trained yet), all of them get this rank
    return {
        address_of(target): Adapter(torch.cat(a)[columns], part[:, columns], scales[0])
        for target, part, columns in zip(step.targets, parts, used, strict=True)
        if bool(columns.any())
    }


def read_replacements(
    model: TransformerModule, step: RuleStep, others: Mapping[str, str], stored: Checkpoint
) -> dict[str, Tensor]:
    """Read the tensors that replace tensors of the base model, by address."""
    shapes = [model.get_parameter(target).shape for target in step.targets]
    needed = step.rule.save([torch.empty(shape, device="meta") for shape in shapes])
    if missing := [source for source in step.sources[: step.rule.needed] if source not in others]:
        raise ValueError(f"{missing[0]} is missing")
    pairs = zip(step.sources, needed, strict=False)
    tensors = [read(stored, others[source], tuple(tensor.shape)) for source, tensor in pairs]
    return dict(zip(step.targets, step.rule.load(tensors, shapes), strict=True))


def untie(model: TransformerModule, values: Mapping[str, Tensor]) -> None:
    """Untie tied weights if only one of the two is replaced, or if they are replaced by different values."""
    lost = []
    for tie in model.spec.ties:
        given = [values[name] for name in tie if name in values]
        if len(given) == 1 or (given and not given[0].equal(given[1])):
            lost.append(tie)
    for name, _ in lost:
        old = model.get_parameter(name)
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, nn.Parameter(old.detach().clone(), name in values))
    if lost:
        model.spec = model.spec.replace(ties=tuple(tie for tie in model.spec.ties if tie not in lost))


def read(stored: Checkpoint, name: str, needed: tuple[int, ...]) -> Tensor:
    if stored.shape(name) != needed:
        raise ValueError(f"the adapter does not fit this model: {name} is {stored.shape(name)}, not {needed}")
    tensor = stored.read(name).float()
    if not finite(tensor):
        raise ValueError(f"{name} contains NaN or infinity")
    return tensor


def scale_of(config: Mapping[str, Any], module: str, rank: int) -> float:
    """Return alpha / rank of a module. The first `alpha_pattern` that matches the end of its name sets alpha."""
    alpha = config.get("lora_alpha", 8)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = value
            break
    if not isinstance(alpha, (int, float)) or not 0 < alpha < math.inf:
        raise ValueError(f"lora_alpha={quote(alpha)} for {module}: must be a number above 0")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
