"""Checks for any Part; anyformer's test suite runs them on its own Parts.

>>> import anyformer as af
>>> report = af.check(af.parts.RMSNorm())
>>> report.passed
True

B batch, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
import typing
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from anyformer.counting import count
from anyformer.evaluate import invariants
from anyformer.evaluate.invariants import EXACT, TOLERANCE
from anyformer.evaluate.model_outputs import DoesNotApply, Failed, in_double
from anyformer.models import DecoderModel, EncoderModel, Model, TransformerModule
from anyformer.models.construct import build
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Normal, is_within
from anyformer.parts.mask import Causal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.specs.codec import override
from anyformer.specs.part import Part, fits, slot_types, walk
from anyformer.specs.part_errors import error_origin
from anyformer.specs.slots import slots_of
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer

T, V, PADS = 12, 40, 4
MIXER = "decoder.layers.attention.op"

Result = Literal["passed", "failed", "does not apply"]


@dataclasses.dataclass(frozen=True)
class Check:
    """One check and its result."""

    name: str
    result: Result
    reason: str  # the measured figure, what is wrong, or why it does not apply


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """All checks of a Part inside a model."""

    part: Part
    address: str  # of the Part in that model
    model: Model
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.result == "failed")

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    @property
    def title(self) -> str:
        where = f" at {self.address} of a small {type(self.model).__name__}" if self.address else ""
        return f"{type(self.part).__name__}{where}"

    def rows(self) -> list[tuple[str, str, str]]:
        return [(check.name, check.result, check.reason) for check in self.checks]

    def __str__(self) -> str:
        widths = [max(len(row[i]) for row in self.rows()) for i in range(2)]
        lines = [f"  {name:{widths[0]}}  {result:{widths[1]}}  {reason}" for name, result, reason in self.rows()]
        return "\n".join((self.title, *(line.rstrip() for line in lines)))


def check(part: Part | type[Part]) -> CheckReport:
    """Put a Part into a small text model, in the slot that it fits, and run the checks of our test suite: causality,
    padding, packed documents, cached decoding, rows of a batch, gradients, half precision, saving, counting. If a Part
    fits no slot of the small model, give a description of a model that contains it: `check(model)`."""
    if isinstance(part, type):
        part = part()
    if not isinstance(part, Part):
        raise ValueError(f"af.check takes a Part or the description of a model, got {type(part).__name__}")
    spec, address = place(part)
    subject = Subject(part, spec, address)
    return CheckReport(part, address, spec, tuple(_run(name, subject) for name in CHECKS))


def _run(name: str, subject: Subject) -> Check:
    try:
        return Check(name, "passed", CHECKS[name](subject))
    except DoesNotApply as error:
        return Check(name, "does not apply", str(error))
    except Failed as error:
        return Check(name, "failed", str(error))
    except Exception as error:  # a Part of the user may raise anything
        origin = error_origin(error)
        lines = str(error).splitlines() or [""]
        return Check(name, "failed", f"{type(error).__name__}: {lines[0]}" + (f", in {origin}" if origin else ""))


# -- the model that a Part is put into ---------------------------------------------------------------------------------


def small_model(**changes: Any) -> DecoderModel:
    """Return a small decoder of plain Parts."""
    block = Block(
        attention=Sublayer(pre_norm=LayerNorm(), op=Attention(num_heads=4, mask=Causal())),
        feedforward=Sublayer(pre_norm=LayerNorm(), op=MLP(width=24)),
    )
    embedding = TextEmbedding(tokens=Tokens(vocab_size=V), position=Learned(length=4 * (T + PADS)))
    return DecoderModel(
        **{
            "width": 16,
            "embedding": embedding,
            "head": LMHead(vocab_size=V),
            "decoder": Stack(layers=block, depth=2, norm=LayerNorm()),
            "init": {"*": Normal(std=0.3)},
            **changes,
        }
    )


def as_encoder(spec: DecoderModel) -> EncoderModel:
    """Return the description as an encoder, where a token may attend to all others."""
    return EncoderModel(**{("encoder" if name == "decoder" else name): value for name, value in spec.items()})


FIRST = ".0"  # the first Part of a tuple


def place(part: Part) -> tuple[Model, str]:
    """Return a small model that contains the Part, and the Part's address in it."""
    if isinstance(part, Model):
        if part.pair or part.towers or not reads_text(part):
            raise ValueError("af.check runs models with one stack that reads text (input_ids); this model is different")
        return part, ""
    refusals: list[str] = []
    for address in sorted(addresses_for(type(part)), key=lambda each: each == MIXER and part.sees == "itself"):
        slot = address.removesuffix(FIRST)
        for has_head in (True, False):
            try:
                value = part if slot == address else (part,)
                spec: Any = override(small_model() if has_head else small_model(head=None), {slot: value})
                spec = spec if has_head else as_encoder(spec)
            except ValueError as error:
                refusals.append(str(error))
                continue
            if reads_text(spec):
                return spec, address if has_head else address.replace("decoder", "encoder", 1)
    kind = type(part).__name__
    why = f" ({refusals[0]})" if refusals else ""
    raise ValueError(f"{kind} fits no slot of a small text model{why}; give af.check a model's description with it")


def reads_text(spec: Model) -> bool:
    return "input_ids" in dict(spec.items())["embedding"].inputs


def addresses_for(kind: type[Part]) -> list[str]:
    """Return the addresses of the small model that take a Part of this kind; filled slots are first. The address in a
    slot for several Parts ends with ".0"."""
    filled: list[str] = []
    empty: list[str] = []
    for path, owner in walk(small_model()):
        for name, hint in slots_of(type(owner)).items():
            if any(slot is not Part and fits(kind, slot) for slot in slot_types(hint)):
                is_filled = isinstance(dict(owner.items()).get(name), Part)
                address = f"{path}.{name}" if path else name
                address += FIRST if typing.get_origin(hint) is tuple else ""
                (filled if is_filled else empty).append(address)
    return filled + empty


@dataclasses.dataclass(frozen=True)
class Subject:
    """The Part to check, at its address in a model."""

    part: Part
    spec: Model
    address: str

    @functools.cached_property
    def model(self) -> Any:
        return random_model(self.spec)

    @functools.cached_property
    def vocab_size(self) -> int:
        return dict(self.spec.items())["embedding"].tokens.vocab_size

    def inputs(self, batch: int = 2, length: int = T) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(0)
        return {"input_ids": torch.randint(1, self.vocab_size, (batch, length), generator=generator)}

    def training_inputs(self) -> dict[str, Tensor]:
        inputs = self.inputs()
        return {**inputs, "labels": inputs["input_ids"]} if isinstance(self.spec.head, LMHead) else inputs

    def compare(self, invariant: Callable[..., float], model: Any = None, batch: int = 2, **options: Any) -> str:
        """Raise Failed if two ways to compute the same outputs differ by more than the tolerance. If they differ in
        fp32, they are compared in double precision, so that rounding does not count."""
        model = self.model if model is None else model
        tolerance = EXACT if invariant in (invariants.check_causality, invariants.check_gradients) else TOLERANCE
        difference = invariant(model, self.inputs(batch), **options)
        if not difference <= tolerance:
            with contextlib.suppress(RuntimeError):  # a kernel may lack double precision
                difference = invariant(in_double(model), self.inputs(batch), **options)
        if not difference <= tolerance:
            raise Failed(f"off by {difference:.1e}, at most {tolerance:.0e} is allowed")
        return f"off by {difference:.1e}"


def random_model(spec: Model, seed: int = 0) -> TransformerModule:
    """Return a model in eval mode with noise on every weight: initial weights of 0 or 1 could hide a mistake."""
    model, generator = build(spec, seed=seed), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


# -- the checks --------------------------------------------------------------------------------------------------------

RUNS = (("auto", True), ("eager", False))  # (kernel, whether in training mode)


def check_causality(subject: Subject) -> str:
    """Check that a token sees only what the Part's `sees` declares."""
    sees, spec = subject.part.sees, subject.spec
    if isinstance(subject.part, Model):
        sees = "past" if spec.writes else "all"
    if sees is None:
        kind = type(subject.part).__name__
        raise DoesNotApply(f'{kind} does not say what a token sees: class {kind}(..., sees="past"), "itself" or "all"')
    if sees == "all" or not spec.writes:
        raise DoesNotApply("a token may see all others" if sees == "all" else "the model does not write")
    options: dict[str, Any] = {"cuts": range(1, T), "runs": RUNS}
    result = subject.compare(invariants.check_causality, **options)
    if sees == "past" or subject.address.startswith(f"{MIXER}."):
        return f"no later token is seen: {result}"
    isolated = spec if subject.address == MIXER else override(spec, {MIXER: MLP(width=24)})
    result = subject.compare(invariants.check_causality, random_model(isolated), both_ways=True, **options)
    return f"no other token is seen: {result}"


def check_padding(subject: Subject) -> str:
    """Check that padding on either side does not change the outputs of real tokens."""
    return subject.compare(invariants.check_padding, pads=PADS, kernels=("auto",))


def check_packing(subject: Subject) -> str:
    """Check that packed documents give the same outputs as separate ones, or are refused."""
    return subject.compare(invariants.check_packing, batch=1, kernels=("auto",))


def check_cached_decoding(subject: Subject) -> str:
    """Check that cached decoding equals one pass: with a growing and a static state, and after padded prompts."""
    if not subject.spec.left_to_right or not subject.spec.writes:
        raise DoesNotApply("the model does not write")
    subject.compare(invariants.check_padded_prompts, batch=3)
    return subject.compare(invariants.check_cached_decoding)


def check_rows(subject: Subject) -> str:
    """Check that a batch gives the same outputs as its rows."""
    return subject.compare(invariants.check_rows, batch=3)


def check_gradients(subject: Subject) -> str:
    """Check that every parameter of the Part gets a gradient, which a seed determines, also with recomputed layers."""

    def learns(name: str) -> bool:  # an address has no layer numbers
        address = ".".join(step for step in name.split(".") if not step.isdecimal())
        return not subject.address or is_within(address, subject.address)

    inputs = subject.training_inputs()
    failure = invariants.failure(invariants.check_gradients, subject.model, inputs, EXACT, learns=learns, nonzero=True)
    if failure is not None:
        raise Failed(f"{failure} if layers are recomputed" if failure.startswith("off by") else failure)
    names = [name for name, each in subject.model.named_parameters() if each.requires_grad and learns(name)]
    return f"{len(names)} parameters learn" if names else "it has no parameters; other parameters learn through it"


def check_half_precision(subject: Subject) -> str:
    """Check that the model gives finite outputs in bf16 and fp16, and finite gradients under autocast; report the
    difference from fp32."""
    reports = []
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        try:
            worst = invariants.check_half_precision(subject.model, subject.inputs(), dtype)
        except RuntimeError as error:
            if "not implemented for" not in str(error):
                raise
            reports.append(f"{name} cannot run here")  # this machine lacks a kernel for this dtype
        else:
            reports.append(f"{name} off by {worst:.1e}")
    worst = invariants.check_mixed_precision(subject.model, subject.training_inputs())
    return ", ".join([*reports, f"loss under autocast off by {worst:.1e}"])


def check_saving(subject: Subject) -> str:
    """Check that saving and loading keeps the description, the tensors and the outputs."""
    with tempfile.TemporaryDirectory() as folder:
        invariants.check_saving(subject.model, subject.inputs(), folder)
    return "the same description, tensors and outputs"


def check_counting(subject: Subject) -> str:
    """Check that counting, which allocates nothing, gives the number of parameters of the built model."""
    invariants.check_counting(subject.model)
    counted = count(subject.spec)
    return f"{counted.parameters:,} parameters, {counted.flops(T):,} FLOPs of {T} tokens"


CHECKS: dict[str, Callable[[Subject], str]] = {
    "causality": check_causality,
    "padding": check_padding,
    "packing": check_packing,
    "cached decoding": check_cached_decoding,
    "rows": check_rows,
    "gradients": check_gradients,
    "half precision": check_half_precision,
    "saving": check_saving,
    "counting": check_counting,
}
