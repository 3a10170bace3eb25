"""The cases that the catalogue-wide suite runs over, their inputs, and the published models they are compared with.

A family adds a file to `cases/` and nothing else: a list of `Case`, each a tiny published config with unusual values.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import dataclasses
import functools
import importlib
import json
import logging
import math
import os
import pkgutil
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from everyday import STANDS_FOR, enough, features, states
from safetensors.torch import load_file, save_file
from torch import Tensor

import anyformer as af
from anyformer import families
from anyformer.evaluate import invariants
from anyformer.evaluate.invariants import EXACT, TOLERANCE
from anyformer.evaluate.model_outputs import DoesNotApply
from anyformer.models import Model
from anyformer.parts.base import AbsolutePosition, Embedding
from anyformer.parts.embedding import subsampling, vectors
from anyformer.parts.grid.pooled_attention import PooledAttention
from anyformer.parts.head import contrastive, double, likely_spans, replaced_tokens, similarity, xvector
from anyformer.parts.head.classify import ClassifyHead, MultipleChoiceHead
from anyformer.parts.head.ctc import CTCHead
from anyformer.parts.head.feature_maps import ChosenLayers
from anyformer.parts.head.image import PixelHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pretraining import NextSentenceHead, PretrainingHead
from anyformer.parts.head.span import SpanHead
from anyformer.parts.head.speech import FrameHead
from anyformer.parts.head.tag import TagHead
from anyformer.parts.mask import Mask
from anyformer.parts.op import Op
from anyformer.parts.position.bias import AttentionPosition
from anyformer.parts.position.numbering import Numbering
from anyformer.stacks.block import Steps
from anyformer.stacks.funnel import Funnel
from anyformer.stacks.perceiver import Perceiver
from anyformer.stacks.stack import Stack
from anyformer.stacks.stages import Stages

# in the environment's temporary folder: each worker builds a model once and deletes it at the end
FOLDER = Path(tempfile.mkdtemp(prefix="anyformer-tests-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


RUN = ("transformers", "diffusers")
FAST = int(os.environ.get("ANYFORMER_FAST", 0))  # tests over cases use only this many, the first of STANDS_FOR; 0: all
QUICK = {*[*STANDS_FOR][:FAST]}


@dataclasses.dataclass(frozen=True)
class Case:
    """A tiny published model. `config` is passed to the Hugging Face config class of `model_type`."""

    model_type: str
    architecture: str
    config: dict[str, Any]
    name: str = ""  # distinguishes variants of one class
    inputs: dict[str, Any] = dataclasses.field(default_factory=dict)  # sizes that the default inputs do not fit
    skip: dict[str, str] = dataclasses.field(default_factory=dict)  # line of BEHAVIOUR.md -> reason

    @property
    def id(self) -> str:
        return f"{self.architecture}-{self.name}" if self.name else self.architecture

    @property
    def library(self) -> str:
        """The library of the published class. Libraries in RUN are run here; recorded outputs of others are in
        `reference/`."""
        return families.find(self.model_type).library

    def __hash__(self) -> int:
        return hash(self.id)


@functools.cache
def every_case() -> list[Case]:
    import cases as package

    found = []
    for module in pkgutil.iter_modules(package.__path__):
        found += importlib.import_module(f"cases.{module.name}").CASES
    assert len({case.id for case in found}) == len(found), "two cases have one id"
    return found


@functools.cache
def cases() -> list[Case]:
    """Return the cases of the suite: all, or with a limit the first of each class and the cases in STANDS_FOR."""
    first = {case.architecture: case.id for case in reversed(every_case())}
    return [case for case in every_case() if not FAST or case.id == first[case.architecture] or case.id in QUICK]


def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Make every parameter and saved buffer random, so that no weight of 0 or 1 hides a mistake. Frozen buffers (sine
    position tables) are computed and not always saved, so they are not changed."""
    generator = torch.Generator().manual_seed(seed)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point() or name in frozen:
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        scale = 0.05 if tensor.dim() > 1 and tensor.shape[0] > 1 else 0.2
        if name.endswith("running_var"):
            tensor.copy_(1 + 0.5 * torch.rand(tensor.shape, generator=generator))
        elif tensor.dim() > 1:
            inputs = tensor.shape[-1] if "experts" in name else tensor[0].numel()  # (experts, outputs, inputs)
            tensor.copy_(noise * (0.7 / max(inputs, 1) ** 0.5))
        else:
            tensor.copy_(noise * scale + (1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0))


def by_diffusers(case: Case) -> bool:
    """Whether the published class is from diffusers, which exposes no internals and has its own format."""
    return case.library == "diffusers"


def shown(case: Case) -> dict[str, bool]:
    """Return the options that make a published class return all its outputs."""
    return {} if by_diffusers(case) else {"output_hidden_states": True, "output_attentions": True}


def weights(case: Case) -> str:
    """Return the name of the file with a case's published weights."""
    return f"{families.find(case.model_type).stem}.safetensors"


@functools.cache
def published(case: Case) -> tuple[Any, Path]:
    """Return the Hugging Face model of a case with random weights, and the folder it was saved to."""
    import transformers

    if by_diffusers(case):
        return published_by_diffusers(case)
    config = transformers.AutoConfig.for_model(case.model_type, **copy.deepcopy(case.config))  # some classes change it
    config.architectures = [case.architecture]
    torch.manual_seed(0)
    model = getattr(transformers, case.architecture)(config).eval()
    randomise(model)
    folder = FOLDER / case.id
    model.save_pretrained(folder)
    model.set_attn_implementation("eager")
    return model, folder


def published_by_diffusers(case: Case) -> tuple[Any, Path]:
    import diffusers

    model = getattr(diffusers, case.architecture)(**case.config).eval()
    randomise(model)
    folder = FOLDER / case.id
    model.save_pretrained(folder)
    return model, folder


@functools.cache
def folder(case: Case) -> Path:
    """Return the folder of a case's published weights."""
    if case.library in RUN:
        return published(case)[1]
    weights = {name.removeprefix("weight."): t for name, t in recorded(case).items() if name.startswith("weight.")}
    found = FOLDER / case.id
    found.mkdir(exist_ok=True)  # forks (mutants.py) share the folder
    config = {**case.config, "model_type": case.model_type, "architectures": [case.architecture]}
    (found / "config.json").write_text(json.dumps(config))
    save_file(weights, found / "model.safetensors")
    return found


def recorded(case: Case) -> dict[str, Tensor]:
    """Return the weights of a case, an input, and the outputs recorded where its library is installed."""
    return load_file(Path(__file__).parent / "reference" / f"{case.library}-{case.name}.safetensors")


def ours(case: Case, **options: Any) -> Any:
    """Return an anyformer model of a case for one test: loaded with these options, or a copy of the shared one."""
    return af.load(folder(case), **options) if options else copy.deepcopy(shared(case))


@functools.cache
def shared(case: Case) -> Any:
    """Return the shared anyformer model of a case, for tests that change nothing in it."""
    return af.load(folder(case))


def shallow(case: Case) -> Any:
    """Return a random anyformer model of a case with as few layers as show each kind once, for the slow tests of
    graphs, which trace every layer."""

    def enough(stack: Stack) -> int:
        kinds = [stack.pattern[i % len(stack.pattern)] if stack.pattern else "" for i in range(stack.depth)]
        return max(map(kinds.index, kinds), default=-1) + 1

    stacks = {path: part for path, part in af_walk(spec_of(case)) if isinstance(part, Stack) and part.order is None}
    changes: dict[str, Any] = {f"{path}.depth": enough(part) for path, part in stacks.items()}
    chosen = (path for path, part in stacks.items() if isinstance(part.neck, ChosenLayers))
    changes |= {f"{path}.neck.layers": (0, changes[f"{path}.depth"]) for path in chosen}
    model = af.build(af.override(spec_of(case), changes))
    randomise(model)
    return model.eval()


@functools.cache
def spec_of(case: Case) -> Any:
    return families.find(case.model_type).read({**case.config, "architectures": [case.architecture]})


# inputs with one label per token -> the field with the number of labels
TOKEN_LABELS = {"token_type_ids": "num_segments", "task_type_ids": "tasks", "langs": "languages"}


def make_token_labels(spec: Any, shape: tuple[int, ...], generator: torch.Generator) -> dict[str, Tensor]:
    counts = {name: getattr(spec.embedding, field, 0) for name, field in TOKEN_LABELS.items()}
    return {name: torch.randint(0, n, shape, generator=generator) for name, n in counts.items() if n}


def is_text(spec: Any) -> bool:
    return "input_ids" in spec.embedding.inputs


def is_encoder_decoder(spec: Any) -> bool:
    return spec.pair


def is_causal(spec: Any) -> bool:
    return hasattr(spec, "decoder")


def make_inputs(case: Case, batch: int = 2, length: int = 17, seed: int = 0, labels: bool = False) -> dict[str, Any]:
    """Return inputs with the right names and shapes for any model, from its description only."""
    spec, length = spec_of(case), case.inputs.get("length", length)
    generator = torch.Generator().manual_seed(seed)

    def ids(vocab_size: int, *shape: int) -> Tensor:
        low = min(5, vocab_size - 1)  # no special tokens
        return torch.randint(low, vocab_size, shape, generator=generator)

    out: dict[str, Any] = {}
    if is_text(spec):
        shape = (batch, 3, length) if isinstance(spec.head, MultipleChoiceHead) else (batch, length)
        out["input_ids"] = ids(spec.embedding.tokens.vocab_size, *shape)
        for place, token in case.inputs.get("input_ids", {}).items():  # tokens that a text must contain
            out["input_ids"][..., place] = token
        if getattr(spec.embedding, "global_tokens", "") == "none":
            out["global_attention_mask"] = (torch.rand(shape, generator=generator) < 0.15).long()
            out["global_attention_mask"][..., length // 2] = 1
        out |= make_token_labels(spec, shape, generator)
        if len(shape) == 3:  # the published class does not accept them
            out.pop("task_type_ids", None)
    elif "time steps" in spec.embedding.gives:
        read = spec.embedding
        widths = {"states": read.state_width, "actions": read.action_width, "rewards": 1, "returns_to_go": 1}
        out = {name: torch.randn(batch, length, width, generator=generator) for name, width in widths.items()}
        out["timesteps"] = torch.randint(0, read.steps, (batch, length), generator=generator)
    elif "a condition" in spec.embedding.gives:
        read = spec.embedding
        out["hidden_states"] = torch.randn(batch, read.channels, *read.image_size, generator=generator)
        out["timestep"] = torch.randint(0, 1000, (batch,), generator=generator)
        out["class_labels"] = torch.randint(0, read.condition.num_labels + 1, (batch,), generator=generator)
    else:
        name = getattr(spec, "input_name", spec.embedding.inputs[0])
        shape = case.inputs.get(name, (3, 32, 32) if name == "pixel_values" else (400 + 40 * length,))
        out[name] = torch.randn(batch, *shape, generator=generator)
    for tower in spec.readers[1:]:  # the first model reads texts
        name = tower.embedding.inputs[0]
        out[name] = torch.randn(batch, *case.inputs.get(name, (3, 32, 32)), generator=generator)
    if is_encoder_decoder(spec):
        vocab = spec.decoder_embedding.tokens.vocab_size
        out["decoder_input_ids"] = ids(vocab, batch, max(length - case.inputs.get("shorter", 4), 1))
    if any(getattr(part, "memory", False) for _, part in af_walk(spec)) and not is_encoder_decoder(spec):
        out["encoder_hidden_states"] = torch.randn(batch, 7, spec.width, generator=generator)
    if labels:
        out |= make_labels(spec, batch, out, generator)
    return out


def time_axis(spec: Any) -> int:
    """Return the time axis of the main input."""
    frames = isinstance(spec.embedding, subsampling.SubsampledSpectrogram | vectors.Vectors)
    return 1 if frames or "time steps" in spec.embedding.gives else -1


def mask_for(spec: Any, inputs: dict[str, Any]) -> Tensor | None:
    """Return ones for all tokens, samples, frames or patches; None if the model takes no mask for them."""
    read = spec.embedding
    pooled = any(isinstance(part, PooledAttention) for _, part in af_walk(spec))  # a key covers several patches
    if "attention_mask" not in read.inputs or "a grid" in read.gives or pooled:
        return None
    first = inputs[read.inputs[0]]
    if "an image" in read.gives:
        patches = math.prod(side // step for side, step in zip(first.shape[2:], read.patch_size, strict=True))
        shape: tuple[int, ...] = (len(first), read.num_prefix + patches)
    elif "time steps" in read.gives:
        shape = tuple(first.shape[:2])
    else:
        shape = tuple(first.shape) if is_text(spec) else (len(first), first.shape[time_axis(spec)])
    return torch.ones(shape, dtype=torch.long)


def af_walk(spec: Any) -> Any:
    from anyformer.specs.part import walk

    return walk(spec)


def make_labels(spec: Any, batch: int, inputs: dict[str, Any], generator: torch.Generator) -> dict[str, Tensor]:
    def below(top: int, *shape: int) -> Tensor:
        return torch.randint(0, top, shape, generator=generator)

    tokens = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    match spec.head:
        case LMHead():
            labels = below(spec.head.vocab_size, *tokens.shape)
            labels[:, 1:2] = -100
            return {"labels": labels}
        case ClassifyHead(num_labels=n):
            return {"labels": below(n, batch)}
        case TagHead(num_labels=n):
            return {"labels": below(n, *tokens.shape)}
        case NextSentenceHead():
            return {"labels": below(2, batch)}
        case PretrainingHead():
            return {"labels": below(spec.head.lm.vocab_size, *tokens.shape), spec.head.inputs[1]: below(2, batch)}
        case MultipleChoiceHead():
            return {"labels": below(3, batch)}
        case double.DoubleHead():
            # one score per text: the texts of a batch are the choices
            width = spec.head.summary.width or spec.width
            choice = below(batch, 1) if width == 1 else below(width, batch)
            return {"labels": below(spec.head.lm.vocab_size, *tokens.shape), "mc_labels": choice}
        case replaced_tokens.DetectHead():
            return {"labels": below(2, *tokens.shape)}
        case SpanHead():
            return {"start_positions": below(tokens.shape[1], batch), "end_positions": below(tokens.shape[1], batch)}
        case likely_spans.LikelySpans():
            rows = {name: below(tokens.shape[1], batch) for name in ("start_positions", "end_positions", "cls_index")}
            return {**rows, "is_impossible": below(2, batch).float()}
        case FrameHead(num_labels=n):
            frames = spec.embedding.stem.frames(inputs["input_values"].shape[-1])
            return {"labels": torch.rand(batch, frames, n, generator=generator)}
        case xvector.XVectorHead(num_labels=n):
            return {"labels": below(n, batch)}
        case contrastive.ContrastHead(negatives=n):
            frames = spec.embedding.stem.frames(inputs["input_values"].shape[-1])
            hidden = torch.rand(batch, frames, generator=generator) < 0.6
            torch.manual_seed(0)
            return {"mask_time_indices": hidden, "sampled_negative_indices": contrastive.draw_negatives(hidden, n)}
        case similarity.SimilarityHead():
            return {"return_loss": True}
        case CTCHead(vocab_size=n):
            known = 1 + below(n - 1, batch, 3) if spec.head.blank == 0 else below(n - 1, batch, 3)
            # the published Parakeet counts frames only by a mask
            mask = mask_for(spec, inputs) if isinstance(spec.embedding, subsampling.SubsampledSpectrogram) else None
            return {"labels": known} if mask is None else {"labels": known, "attention_mask": mask}
        case PixelHead(patch_size=patch):
            sides = inputs["pixel_values"].shape[2:]
            count = math.prod(-(-side // step) for side, step in zip(sides, patch, strict=True))
            return {"bool_masked_pos": below(2, batch, count).bool()}
    return {}


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> None:
    """Assert equality to `tolerance` on outputs of order 1, relative to the largest value if that is above 1."""
    a, b = a.detach(), b.detach()
    scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
    worst = float((a - b).abs().max()) if b.numel() else 0.0
    assert a.shape == b.shape, f"{tuple(a.shape)} is not {tuple(b.shape)}"
    assert worst <= tolerance * scale, f"off by {worst:.2e} on values up to {scale:.2f}"


def holds(
    invariant: Callable[..., float], model: Any, inputs: Any, tolerance: float = TOLERANCE, **options: Any
) -> None:
    """Fail if an invariant does not hold; skip the test if it does not apply."""
    import pytest

    try:
        failure = invariants.failure(invariant, model, inputs, tolerance, **options)
    except DoesNotApply as error:
        pytest.skip(str(error))
    assert failure is None, f"{invariant.__name__}: {failure}"


def all_hold(model: Any, inputs: dict[str, Any], labels: dict[str, Any], **more: dict[str, Any]) -> set[str]:
    """Check every invariant of a family without a published class; `more` has options of single invariants. Return the
    names of those that apply."""
    found = set()
    for invariant, given, tolerance, options in (
        (invariants.check_causality, {}, EXACT, {"must_show": True}), (invariants.check_rows, {}, TOLERANCE, {}),
        (invariants.check_padding, {}, TOLERANCE, {}), (invariants.check_packing, {}, TOLERANCE, {"gradients": True}),
        (invariants.check_cached_decoding, {}, TOLERANCE, {}), (invariants.check_padded_prompts, {}, TOLERANCE, {}),
        (invariants.check_kernels, {}, TOLERANCE, {}), (invariants.check_gradients, labels, EXACT, {"as_given": True}),
    ):  # fmt: skip
        name = invariant.__name__.removeprefix("check_")
        options |= more.get(name, {})
        if invariant is invariants.check_causality and not model.spec.writes:
            continue
        try:
            failure = invariants.failure(invariant, model, {**inputs, **given}, tolerance, **options)
        except DoesNotApply:
            continue
        assert failure is None, f"{name}: {failure}"
        found.add(name)
    return found


def holds_in_half_precision(model: Any, inputs: dict[str, Any]) -> None:
    for dtype, tolerance in ((torch.bfloat16, 4e-2), (torch.float16, 5e-3)):
        holds(invariants.check_kernels, copy.deepcopy(model).to(dtype), inputs, tolerance)


DECODER = {
    "causality", "rows", "padding", "packing", "cached_decoding", "padded_prompts", "kernels", "gradients",
}  # fmt: skip
ENCODER = {"rows", "padding", "kernels", "gradients"}


@contextlib.contextmanager
def warnings_of(library: str) -> Iterator[list[str]]:
    """Record a library's warnings and errors. (pytest's plugin for this costs a millisecond per test.)"""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(library)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def over_catalogue(line: str = "", everyday: Callable[[Case], Collection[Any]] | None = None, run: bool = False) -> Any:
    """Parametrise a test over all cases. Cases with a mathematical exception from `line` are left out and checked by
    `test_declared_exceptions`. `everyday` is as in `over`. If the test runs the published class (`run`), only libraries
    in RUN are used: other families have tests against recorded outputs."""
    chosen = [case for case in cases() if line not in case.skip and (not run or case.library in RUN)]
    return over(chosen, everyday)


def over(chosen: list[Case], everyday: Callable[[Case], Collection[Any]] | None = None, group: str = "") -> Any:
    """Parametrise a test over cases. `everyday` maps a case to the values that matter here: enough cases to show all of
    them run in `make test`, the others in `make test-all`. Slow fixtures that no case owns are made once per
    `group`."""
    import pytest

    if FAST:
        chosen = [case for case in chosen if case.id in QUICK]
    needed = enough({case.id: frozenset(everyday(case)) if everyday else {case.id} for case in chosen})
    parameters = []
    for case in chosen:
        marks = [pytest.mark.xdist_group(group or case.id)]  # one worker builds the published model of a case, once
        parameters.append(pytest.param(case, marks=marks + [pytest.mark.slow] * (case.id not in needed), id=case.id))
    return pytest.mark.parametrize("case", parameters)


def one_each(chosen: list[Case], kind: Callable[[Case], Any]) -> list[Case]:
    """Return the first case of each kind."""
    return list({kind(case): case for case in reversed(chosen)}.values())[::-1]


def family(case: Case) -> tuple[str]:
    return (case.model_type,)


@functools.cache
def structure(case: Case) -> frozenset[tuple[str, str]]:
    """For tests that depend on the kinds of Parts: mixers, norms and their placement, positions, the head."""
    return features(spec_of(case))


def family_and_structure(case: Case) -> tuple[Any, ...]:
    return case.model_type, *structure(case)


def shape(case: Case) -> tuple[Any, ...]:
    """For tests of code that all models of one shape share."""
    return type(spec_of(case)), spec_of(case).target, case.library


@functools.cache
def graph(case: Case) -> frozenset[Any]:
    """For compiled graphs: the kinds of model, embedding, mixers, feed-forwards and stacks. Masks, positions and norms
    have their own graph tests (test_mask.py, test_absolute.py, test_block.py)."""
    kinds = (Model, Embedding, Op, Steps, Stack, Stages, Funnel, Perceiver)
    return frozenset(type(part) for _, part in af_walk(spec_of(case)) if isinstance(part, kinds))


@functools.cache
def coarse_graph(case: Case) -> frozenset[Any]:
    """For tests that take seconds to compile: the kinds of model, stack and state."""
    kinds = (Model, Steps, Stack, Stages, Funnel, Perceiver)
    spec = spec_of(case)
    return states(spec) | {type(part) for _, part in af_walk(spec) if isinstance(part, kinds)}


@functools.cache
def decoding(case: Case) -> frozenset[Any]:
    """For tests of generation: the kinds of model, embedding, state, mixer, mask and position. Norms, feed-forwards and
    output layers are the same with and without a cache (G1 in test_numerics.py, with every structure)."""
    spec, kinds = spec_of(case), (Embedding, Mask, AbsolutePosition, AttentionPosition, Numbering)
    found = {type(part) for _, part in af_walk(spec) if isinstance(part, kinds)}
    found |= {type(part) for _, part in af_walk(spec) if isinstance(part, Op) and part.sees != "itself"}
    return states(spec) | found | {type(spec)}


@functools.cache
def body_and_head(case: Case) -> tuple[Any, Any]:
    """What tests of the body depend on: the whole description without the head (a family's dozen heads share it), and
    the kind of head."""
    spec = spec_of(case)
    body = spec.replace(head=None, architecture="", ties=(), init={}, source={})
    return body, (type(spec), type(spec.head), getattr(getattr(spec.head, "pool", None), "take", None))


@functools.cache
def settings(case: Case) -> tuple[Any, ...]:
    """What tests of numerics depend on: the family, the kind of head, and every setting of every kind of Part, from any
    family. For sizes only their presence counts: of two cases that differ only in sizes, the second runs in `make
    test-all`."""

    def setting(value: Any) -> Any:
        match value:
            case bool() | str() | None:
                return value
            case int() | float():
                return value > 0
            case tuple() | list() if all(isinstance(each, str) for each in value):
                return frozenset(value)
            case tuple() | list() | dict():
                return len(value) > 0
        return type(value)

    described, head = body_and_head(case)
    found = {(type(part), name, setting(value)) for _, part in af_walk(described) for name, value in part.items()}
    return (case.model_type, head, *found)
