"""Checks for any Part; anyformer's test suite runs them on its own Parts.

>>> import anyformer as af
>>> report = af.check(af.parts.RMSNorm())
>>> report.passed
True

B batch, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import tempfile
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from anyformer.checkpoint import load, save
from anyformer.counting import count
from anyformer.models import DecoderModel, EncoderModel, Model, TransformerModule
from anyformer.models.construct import build
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Normal, computed_tensors, is_within
from anyformer.parts.mask import Causal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.specs.codec import decode, encode, override
from anyformer.specs.part import Part, fits, slot_types, walk
from anyformer.specs.part_errors import error_origin
from anyformer.specs.slots import slots_of
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.transforms.recompute import recompute

T, V, PADS = 12, 40, 4
TOLERANCE = 1e-5  # largest difference of outputs, relative to the largest output if it is above 1
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


class DoesNotApply(Exception):
    """Raised, with the reason, by a check that does not apply to this Part."""


class Failed(Exception):
    """Raised by a check that fails, with what is wrong."""


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
    """Return the description as an encoder, in which a token may attend to all others."""
    return EncoderModel(**{("encoder" if name == "decoder" else name): value for name, value in spec.items()})


def place(part: Part) -> tuple[Model, str]:
    """Return a small model that contains the Part, and the Part's address in it."""
    if isinstance(part, Model):
        if part.pair or part.towers or not reads_text(part):
            raise ValueError("af.check runs models with one stack that reads text (input_ids); this model is different")
        return part, ""
    refusals: list[str] = []
    for address in sorted(addresses_for(type(part)), key=lambda each: each == MIXER and part.sees == "itself"):
        for has_head in (True, False):
            try:
                spec: Any = override(small_model() if has_head else small_model(head=None), {address: part})
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
    """Return the addresses of the small model that take a Part of this kind; filled slots are first."""
    filled: list[str] = []
    empty: list[str] = []
    for path, owner in walk(small_model()):
        for name, hint in slots_of(type(owner)).items():
            if any(slot is not Part and fits(kind, slot) for slot in slot_types(hint)):
                is_filled = isinstance(dict(owner.items()).get(name), Part)
                (filled if is_filled else empty).append(f"{path}.{name}" if path else name)
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

    def ids(self, batch: int = 2, length: int = T, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(1, self.vocab_size, (batch, length), generator=generator)

    def compare(self, difference: Callable[[TransformerModule], float], model: TransformerModule | None = None) -> str:
        """Raise Failed if two ways to compute the same result differ by more than the tolerance. If they differ in
        fp32, they are compared in double precision, so that rounding does not count."""
        model = self.model if model is None else model
        gap = difference(model)
        if not gap <= TOLERANCE:
            doubled = copy.deepcopy(model).double()
            with contextlib.suppress(RuntimeError):  # a kernel may lack double precision
                gap = difference(doubled)
        if not gap <= TOLERANCE:
            raise Failed(f"off by {gap:.1e}, at most {TOLERANCE:.0e} is allowed")
        return f"off by {gap:.1e}"


def random_model(spec: Model, seed: int = 0) -> TransformerModule:
    """Return a model in eval mode with noise on every weight: initial weights of 0 or 1 could hide a mistake."""
    model, generator = build(spec, seed=seed), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


@torch.no_grad()
def outputs(model: TransformerModule, ids: Tensor, **inputs: Any) -> dict[str, Tensor]:
    """Return the floating-point outputs by name. Random numbers are the same in every call."""
    if isinstance(model.spec, DecoderModel):
        inputs = {"use_cache": False, **inputs}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        out = model(input_ids=ids, **inputs)
    return {name: value for name, value in out.items() if isinstance(value, Tensor) and value.is_floating_point()}


def per_token(model: TransformerModule, ids: Tensor, **inputs: Any) -> Tensor:
    """Return the model's output (B, T, ...) per token."""
    states = [value for value in outputs(model, ids, **inputs).values() if value.shape[:2] == ids.shape]
    if not states:
        raise DoesNotApply("the model has no output per token")
    return states[0]


def gap(a: Tensor, b: Tensor) -> float:
    """Return the largest difference, relative to the largest value of `b` if it is above 1."""
    if a.shape != b.shape:
        raise Failed(f"the shape is {tuple(a.shape)} and not {tuple(b.shape)}")
    if not b.numel():
        return 0.0
    if not bool(a.isfinite().all() & b.isfinite().all()):
        raise Failed("values are not finite")
    return float((a - b).abs().max()) / max(1.0, float(b.abs().max()))


# -- the checks --------------------------------------------------------------------------------------------------------


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
    result = subject.compare(future_difference)
    if sees == "past" or subject.address.startswith(f"{MIXER}."):
        return f"no later token is seen: {result}"
    isolated = spec if subject.address == MIXER else override(spec, {MIXER: MLP(width=24)})
    result = subject.compare(functools.partial(future_difference, past_too=True), random_model(isolated))
    return f"no other token is seen: {result}"


def future_difference(model: TransformerModule, past_too: bool = False) -> float:
    """Return how much a change of later tokens changes the outputs before them, in training and in eval mode; with
    `past_too`, also how much a change of earlier tokens changes the outputs after them."""
    ids, worst = Subject(model.spec, model.spec, "").ids(), 0.0
    size, training, kernel = model.spec.embedding.tokens.vocab_size, model.training, model.kernel
    others = ids % (size - 1) + 1  # every token differs
    for mode, model.kernel in ((True, "auto"), (False, "eager")):
        model.train(mode)
        plain = per_token(model, ids)
        for at in range(1, T):
            later = per_token(model, torch.cat((ids[:, :at], others[:, at:]), dim=1))
            worst = max(worst, gap(later[:, :at], plain[:, :at]))
            if past_too:
                earlier = per_token(model, torch.cat((others[:, :at], ids[:, at:]), dim=1))
                worst = max(worst, gap(earlier[:, at:], plain[:, at:]))
    model.train(training)
    model.kernel = kernel
    return worst


def check_padding(subject: Subject) -> str:
    """Check that padding on either side does not change the outputs of real tokens."""

    def difference(model: TransformerModule) -> float:
        ids, worst = subject.ids(), 0.0
        plain, pads, real = per_token(model, ids), torch.full((2, PADS), 7), torch.ones_like(ids)
        for side in (1, -1):
            row, mask = (torch.cat(pair[::side], dim=1) for pair in ((pads, ids), (torch.zeros_like(pads), real)))
            padded = per_token(model, row, attention_mask=mask)
            worst = max(worst, gap(padded[:, PADS:] if side == 1 else padded[:, :T], plain))
        return worst

    return subject.compare(difference)


def check_packing(subject: Subject) -> str:
    """Check that packed documents give the same outputs as separate ones, or are refused."""
    if "document_ids" not in subject.model.inputs:
        raise DoesNotApply("the model takes no packed documents")
    try:
        return subject.compare(packing_difference)
    except ValueError as error:
        if "document" in str(error) or "packed" in str(error):
            raise DoesNotApply(f"packed documents are refused: {error}") from None
        raise


def packing_difference(model: TransformerModule, cuts: tuple[int, ...] = (0, 5, 9, T)) -> float:
    ids = Subject(model.spec, model.spec, "").ids(1)
    spans = [*itertools.pairwise(cuts)]
    documents = torch.tensor([[i for i, (a, b) in enumerate(spans) for _ in range(a, b)]])
    together = per_token(model, ids, document_ids=documents)
    return gap(together, torch.cat([per_token(model, ids[:, a:b]) for a, b in spans], dim=1))


def check_cached_decoding(subject: Subject) -> str:
    """Check that cached decoding equals one pass: with a growing and a static state, and after padded prompts."""
    model = subject.model
    if not subject.spec.left_to_right or not subject.spec.writes:
        raise DoesNotApply("the model does not write")
    if not model.remembers:
        raise DoesNotApply(f"{model.stateless[0]} has no cache: the text is read again for each token")

    def difference(model: TransformerModule) -> float:
        ids, worst = subject.ids(), 0.0
        full = per_token(model, ids)
        for state in (model.new_state(), model.new_state(2, capacity=T + 3)):
            for start, end in [(0, 4), *((t, t + 1) for t in range(4, T - 3)), (T - 3, T)]:
                step = per_token(model, ids[:, start:end], past_key_values=state, use_cache=True)
                worst = max(worst, gap(step, full[:, start:end]))
        state, pads = model.new_state(), torch.full((2, 3), 7)
        mask = torch.cat((torch.zeros_like(pads), torch.ones(2, 4, dtype=torch.long)), dim=1)
        prompt = torch.cat((pads, ids[:, :4]), dim=1)
        per_token(model, prompt, attention_mask=mask, past_key_values=state, use_cache=True)
        step = per_token(model, ids[:, 4:7], past_key_values=state, use_cache=True)
        return max(worst, gap(step, full[:, 4:7]))

    return subject.compare(difference)


def check_rows(subject: Subject) -> str:
    """Check that a batch gives the same outputs as its rows."""

    def difference(model: TransformerModule) -> float:
        ids = subject.ids(3)
        whole, each = outputs(model, ids), [outputs(model, ids[i : i + 1]) for i in range(3)]
        return max(gap(value, torch.cat([row[name] for row in each])) for name, value in whole.items() if value.dim())

    return subject.compare(difference)


def check_gradients(subject: Subject) -> str:
    """Check that every parameter of the Part gets a gradient, which a seed determines, also with recomputed layers."""
    models = [build(subject.spec, seed=3).train() for _ in range(2)]
    first, second = (learn(model, subject.ids()) for model in models)
    for name, tensor in models[0].state_dict().items():
        if not torch.equal(tensor, models[1].state_dict()[name]):
            raise Failed(f"{name} is initialized differently with the same seed")
    random = learn(subject.model, subject.ids())
    subject.model.zero_grad()
    learned = [name for name, parameter in models[0].named_parameters() if parameter.requires_grad]
    names = [name for name in learned if not subject.address or is_within(_layerless(name), subject.address)]
    missing = [name for name in names if not any(_is_nonzero(each.get(name)) for each in (first, random))]
    if missing:
        raise Failed(f"no gradient: {', '.join(missing[:3])}" + (f" and {len(missing) - 3} more" * (len(missing) > 3)))
    for name, gradient in first.items():
        if not bool(gradient.isfinite().all()):
            raise Failed(f"the gradient of {name} is not finite")
        if not torch.equal(gradient, second[name]):
            raise Failed(f"the gradient of {name} differs with the same seed")
    recomputed = learn(recompute(models[1]), subject.ids())
    worst = max((gap(recomputed[name], gradient) for name, gradient in first.items()), default=0.0)
    if worst > TOLERANCE:
        raise Failed(f"off by {worst:.1e} if layers are recomputed in the backward pass")
    return f"{len(names)} parameters learn" if names else "it has no parameters; other parameters learn through it"


def _layerless(name: str) -> str:
    """Return the address of a parameter in the description: its name without layer numbers."""
    return ".".join(step for step in name.split(".") if not step.isdecimal())


def _is_nonzero(gradient: Tensor | None) -> bool:
    return gradient is not None and bool((gradient != 0).any())


def learn(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """Return the gradients by parameter: of the loss with labels, or of the outputs' distance from fixed noise."""
    model.zero_grad()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        out = model(input_ids=ids, **({"labels": ids} if isinstance(model.spec.head, LMHead) else {}))
        loss = out.loss
        if loss is None:
            terms = [v for v in out.values() if isinstance(v, Tensor) and v.requires_grad]
            loss = sum((v - torch.randn(v.shape)).square().mean() for v in terms)
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        return {}
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def check_half_precision(subject: Subject) -> str:
    """Check that the model runs in bf16 and fp16 and gives finite outputs; report the difference from fp32."""
    ids, reports = subject.ids(), []
    exact = outputs(subject.model, ids)
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        try:
            halves = outputs(copy.deepcopy(subject.model).to(dtype), ids)
        except RuntimeError as error:
            if "not implemented for" in str(error):  # this machine lacks a kernel for this dtype
                reports.append(f"{name} cannot run here")
                continue
            raise
        for key, value in halves.items():
            if not bool(value.isfinite().all()):
                raise Failed(f"{key} is not finite in {name}")
        worst = max(gap(value.float(), exact[key]) for key, value in halves.items())
        reports.append(f"{name} off by {worst:.1e}")
    return ", ".join(reports)


def check_saving(subject: Subject) -> str:
    """Check that saving and loading keeps the description, the tensors and the outputs."""
    spec, model = subject.spec, subject.model
    if decode(encode(spec)) != spec:
        raise Failed("the description changes in a round trip through JSON")
    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
        loaded = load(folder)
        if loaded.spec.replace(source=spec.source) != spec:
            raise Failed("the loaded description is different")
        for name, tensor in model.state_dict().items():
            if not torch.equal(loaded.state_dict()[name], tensor):
                raise Failed(f"{name} changes when saved and loaded")
        ours, theirs = outputs(model, subject.ids()), outputs(loaded, subject.ids())
    for name, value in ours.items():
        if not torch.equal(theirs[name], value):
            raise Failed(f"{name} is off by {gap(theirs[name], value):.1e} after loading: some state was not saved")
    return "the same description, tensors and outputs"


def check_counting(subject: Subject) -> str:
    """Check that counting, which allocates nothing, gives the number of parameters of the built model."""
    fixed = computed_tensors(subject.model)
    built = sum(p.numel() for name, p in subject.model.named_parameters() if name not in fixed)
    counted = count(subject.spec)
    if counted.parameters != built:
        raise Failed(f"{counted.parameters:,} parameters are counted and {built:,} are built")
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
