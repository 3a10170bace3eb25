"""The base class of model descriptions: common fields, and checks that need the whole model."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch.overrides import TorchFunctionMode

from anyformer.parts.base import HasLength, HasTokens
from anyformer.parts.embedding.text import GIVERS
from anyformer.parts.feedforward.moe import MoE
from anyformer.parts.head.base import Head
from anyformer.parts.head.language import LMHead, VocabularyOutput
from anyformer.parts.init import Initializer, initialise, is_within, owner_of
from anyformer.parts.language_specific import MAX_LANGUAGES, LanguageSpecific
from anyformer.specs.addresses import value_at
from anyformer.specs.field_types import Count
from anyformer.specs.part import Part, Site, Table, parts_in, tree, walk
from anyformer.specs.part_errors import error_origin
from anyformer.specs.services import service
from anyformer.stacks.stack import Stack

Offered = Literal["always", "without labels", "never"]


class Model(Part, abstract=True):
    """Base class of model descriptions. `family`, `architecture` and `source` identify the published config that it was
    read from, so that it can be exported again: `source` keeps the config's fields that do not change the mathematics
    (token ids, labels, ...)."""

    width: Count
    length: Count | None = None  # most tokens per text, if no position table sets the limit
    head: Head | None = None
    state_name: str = "past_key_values"  # name of the decoding state in the published class
    state_offered: Offered = "always"  # when the published class returns a decoding state that was not requested
    init: Mapping[str, Initializer] = Table()
    # pairs of addresses: (parameter, the parameter whose storage it uses), or two equal Parts that share all parameters
    ties: tuple[tuple[str, str], ...] = ()  # weight tying, such as tied embeddings
    family: str = ""
    architecture: str = ""
    source: Mapping[str, Any] = Table()
    note: str = ""

    left_to_right: ClassVar[tuple[str, ...]] = ()  # the fields that must be causal if the head predicts next tokens
    pair: ClassVar[bool] = False  # encoder-decoder
    target: ClassVar[str] = "embedding"  # field with the embedding of the tokens that the head predicts
    gives: ClassVar[tuple[str, ...]] = ()  # requirements of Parts that this model shape meets

    @classmethod
    def upgrade(cls, data: dict[str, Any]) -> dict[str, Any]:
        """In earlier versions, the prefix tokens of an embedding were one parameter."""
        if isinstance(init := data.get("init"), dict):
            data["init"] = {f"{name}.*" if name.endswith("prefix") else name: rule for name, rule in init.items()}
        return data

    @property
    def towers(self) -> tuple[Model, ...]:
        """Its towers, if it has any."""
        return ()

    @property
    def readers(self) -> tuple[Model, ...]:
        """All models in it that have an embedding, the text model first."""
        return self.towers or (self,)

    @property
    def writes(self) -> bool:
        """Whether this model predicts next tokens, so that no token may see a later one."""
        heads = (part for _, part in walk(self.head))
        return bool(self.left_to_right) and any(isinstance(part, (LMHead, VocabularyOutput)) for part in heads)

    @property
    def labels(self) -> tuple[str, ...]:
        """The label names of a classifier or tagger in the order of their ids; () if the config only has default names
        ("LABEL_0")."""
        stored = self.source.get("id2label") or {}
        names = tuple(str(stored[number]) for number in sorted(stored, key=int))
        return () if names == tuple(f"LABEL_{i}" for i in range(len(names))) else names

    def owner_of(self, name: str) -> str | None:
        """Return the address of the parameter whose storage this one uses; None if it has its own."""
        return owner_of(self.ties, name)

    def shares(self, name: str) -> bool:
        """Whether the parameter or module at this address is part of a tie, on either side."""
        return any(is_within(name, side) or is_within(side, name) for tie in self.ties for side in tie)

    def with_labels(self, labels: Sequence[str]) -> Self:
        """Return a copy with these label names."""
        others = {name: value for name, value in self.source.items() if name not in ("num_labels", "_num_labels")}
        numbers = {label: i for i, label in enumerate(labels)}
        table = {"id2label": {str(i): label for label, i in numbers.items()}, "label2id": numbers}
        return self.replace(source=Table({**others, **table}))

    def check(self) -> None:
        parts = [part for _, part in walk(self)]
        layers = sum(part.depth for part in parts if isinstance(part, Stack))
        if layers > 10_000:  # a hostile file must not keep a machine busy for hours
            raise ValueError(f"{layers:,} layers; at most 10,000 can be built")
        experts = max((part.num_experts for part in parts if isinstance(part, MoE)), default=0)
        if layers * experts > 1_000_000:
            raise ValueError(f"{experts:,} experts in each of {layers:,} layers; at most 1,000,000 can be built")
        stacks = (part for part in parts if isinstance(part, Stack))
        specific = ((s, part) for s in stacks for _, part in walk(s) if isinstance(part, LanguageSpecific))
        if (ops := sum(stack.depth * len(part.tokens) for stack, part in specific)) > MAX_LANGUAGES:
            raise ValueError(f"{ops:,} language-specific ops in all layers; at most {MAX_LANGUAGES:,} can be built")
        routers = {(type(part.router).__name__, part.num_experts) for part in parts if isinstance(part, MoE)}
        if self.head is not None and self.head.balance is not None and len(routers) > 1:
            names = " and ".join(f"{router} over {count} experts" for router, count in sorted(routers))
            raise ValueError(f"head.balance needs the same router in all layers, got {names}; set it to None")
        self.check_vocabulary()
        self.check_pixels()
        self.check_ties()
        if self.writes:
            self.check_writing(*self.left_to_right)
        self.check_needs()

    def sizes_left_behind(self, before: Part, path: str, changes: Mapping[str, Any]) -> str:
        """After a change of the model's width: name inner widths, and heads whose total is the old width."""
        home, _, field = path.rpartition(".")
        old = before.width if isinstance(before, Model) else None
        if field != "width" or self.width == old:
            return ""
        kept = []
        for address, part in walk(self, home):
            own = dict(part.items())
            if address == home or any(address == each or address.startswith(f"{each}.") for each in changes):
                continue
            heads, each = own.get("num_heads"), own.get("head_width")
            touched = any(f"{address}.{name}" in changes for name in ("num_heads", "head_width"))
            if heads and each and heads * each == old and not touched:
                kept.append(f"{address} ({heads} heads of {each})")
            if own.get("width") is not None and f"{address}.width" not in changes and not isinstance(part, Model):
                kept.append(f"{address}.width ({own['width']})")
        return f"{path} is now {self.width}, but these sizes were not changed: {', '.join(kept)}" if kept else ""

    def check_vocabulary(self) -> None:
        """Check that the head's vocabulary size equals the embedding's."""
        name = self.target
        embedding = getattr(self, name, None)
        tokens = embedding.tokens if isinstance(embedding, HasTokens) else None
        for path, part in walk(self.head, "head"):
            if tokens is not None and isinstance(part, (LMHead, VocabularyOutput)):
                if part.vocab_size != tokens.vocab_size and not part.own_vocabulary:
                    raise ValueError(
                        f"{path}.vocab_size is {part.vocab_size}, but {name}.tokens.vocab_size is {tokens.vocab_size}:"
                        " change both together"
                    )

    def check_pixels(self) -> None:
        """Check that patch size, channels and features of the head equal the embedding's."""
        embedding = dict(super().items()).get("embedding")
        for name in ("patch_size", "channels", "features"):
            ours, given = getattr(self.head, name, None), getattr(embedding, name, None)
            if ours is not None and given is not None and ours != given:
                raise ValueError(f"head.{name} is {ours}, but embedding.{name} is {given}: change both together")

    def check_ties(self) -> None:
        """Check that each parameter is tied once, to an untied owner, and that tied Parts are equal."""
        if len({name for name, _ in self.ties}) < len(self.ties):
            raise ValueError("ties: a parameter is tied twice; tie it to one owner")
        for number, (name, owner) in enumerate(self.ties):
            if any(is_within(owner, tied) or is_within(tied, owner) for tied, _ in self.ties[number:]):
                raise ValueError(f"ties: {name} is tied to {owner}, which is tied too: tie both to an untied parameter")
            try:
                tied, shared = value_at(self, name), value_at(self, owner)
            except ValueError:
                continue  # addresses of parameters, which `TransformerModule.tie` checks
            if isinstance(tied, Part) and tied != shared:
                raise ValueError(f"ties: {name} and {owner} are tied but differ: change both together")

    def check_writing(self, *names: str) -> None:
        """Raise ValueError if a Part lets a token see later ones; name the first one and a causal alternative."""
        written = [(name, getattr(self, name)) for name in names]
        written += [(path, part) for path, part in walk(self.head, "head") if isinstance(part, LMHead)]
        for address, part in (found for path, each in written for found in parts_seeing_ahead(each, path)):
            name = type(part).__name__
            if part.declared_sees is None:
                raise ValueError(
                    f"{address}: {name} does not declare which tokens it sees, which a left-to-right model requires;"
                    f' declare it: class {name}(..., sees="past"), or "itself" or "all"'
                )
            fix = f"; {part.causal_alternative} does not" if part.causal_alternative else ""
            raise ValueError(f"{address}: {name} lets a token see the future{fix}")

    def check_needs(self) -> None:
        """Check that the embedding gives what the Parts require (the grid of an image, token ids, ...)."""
        fields = dict(super().items())
        needed: set[str] = set()
        for name in ("embedding", "decoder_embedding", "encoder", "decoder", "head"):
            source = fields.get("embedding" if name in ("embedding", "encoder") else self.target)
            for address, part in walk(fields.get(name), name):
                for need in part.requires:
                    needed.add(need)
                    if source is not None and need not in (*source.gives, *self.gives):
                        reason = f"{type(part).__name__} needs {need}, which {type(source).__name__} does not give"
                        raise ValueError(f"{address}: {reason}; {GIVERS.get(need, 'a different embedding')} does")
        for name in ("embedding", "decoder_embedding"):
            given = () if fields.get(name) is None else fields[name].gives
            if "a condition" in given and "a condition" not in needed:
                raise ValueError(f"{name}.condition: no Part of this model reads it; AdaptiveNorm and Gated would")
            if "an order" in given and "an order" not in needed:
                giver = type(fields[name]).__name__
                raise ValueError(f"{name}: no Part of this model reads the order of {giver}; TwoStreams would")

    def __str__(self) -> str:
        return tree(self)

    def _repr_html_(self) -> str:
        return notebook_html(self)

    # -- from a description to a module -------------------------------------------------------------------------------

    def skeleton(self, kind: type[Site] = Site) -> Any:
        """Build the model on the meta device: shapes and addresses, no memory. `kind` is the class of its Site."""
        try:
            with torch.device("meta"), _Unfilled():
                model = self.build(kind(width=self.width))
        except (TypeError, RuntimeError, AssertionError, ArithmeticError) as error:  # torch's errors about sizes
            origin = error_origin(error)
            where = f"{origin}: {type(error).__name__}" if origin else "this description cannot be built"
            raise ValueError(f"{where}: {(str(error).splitlines() or [repr(error)])[0]}") from error
        model.tie()
        return model

    def make(self, seed: int, device: torch.device, dtype: torch.dtype | None) -> Any:
        """Build the model and initialise its weights with this seed; on device `meta` nothing is allocated."""
        model = self.skeleton()
        if dtype is not None:
            model = model.to(dtype)
        if device.type == "meta":
            return model
        model.to_empty(device=device)
        model.tie()
        initialise(model, self.init, seed)
        return model

    def items(self) -> Iterator[tuple[str, Any]]:
        """(name, value) of every field in the order of data flow: width, embedding, stacks, then head and the rest."""
        last = Model.__annotations__.keys() - {"width", "length"}
        yield from sorted(super().items(), key=lambda item: item[0] in last)


def notebook_html(spec: Model) -> str:
    """Return the drawing of a description and its text, folded; only the text if the model cannot be built."""
    words = f"<pre>{html.escape(tree(spec))}</pre>"
    try:
        return f"{service('draw')(spec).svg}<details><summary>as text</summary>{words}</details>"
    except ValueError:
        return words


class _Unfilled(TorchFunctionMode):
    """Skips random initialisation on meta, for which torch would import its whole compiler (seconds)."""

    fills = frozenset(("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "xavier_uniform_"))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in self.fills:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def position_limit(spec: Any) -> int | None:
    """Return the longest text a model can read, or None if there is no limit."""
    position = getattr(spec, spec.target).position
    limit = position.length if isinstance(position, HasLength) else None
    if limit is None and not any(part.length_dependent for _, part in walk(spec)):
        limit = spec.length  # no limit with dynamic rotary positions, which are rescaled for longer texts
    return limit


def input_limit(spec: Any) -> int | None:
    """Return the longest input of a model (or of its encoder) in tokens; None if there is no limit."""
    own = spec.embedding.max_length
    return own if own is not None else position_limit(spec)


def parts_seeing_ahead(part: Part, path: str = "") -> Iterator[tuple[str, Part]]:
    """Yield (address, Part) of the innermost Parts that let a token see later ones, or that do not declare `sees`."""
    if part.sees in ("itself", "past"):
        return
    children = [] if part.declared_sees is None or part.causal_alternative else parts_in(part, path)
    yield from [found for at, child in children for found in parts_seeing_ahead(child, at)] or [(path, part)]
