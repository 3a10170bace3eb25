"""The description that every model shape extends: its fields, and the checks that need the whole model."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch.overrides import TorchFunctionMode

from anyformer.parts.embedding.text import GIVERS
from anyformer.parts.feedforward.moe import MoE
from anyformer.parts.head.base import Head
from anyformer.parts.head.language import LMHead, VocabularyOutput
from anyformer.parts.init import Initializer, initialise, is_within, owner_of
from anyformer.parts.language_specific import MAX_LANGUAGES, LanguageSpecific
from anyformer.specs.addresses import value_at
from anyformer.specs.checks import at_least
from anyformer.specs.part import Part, Site, Table, parts_seeing_ahead, tree, walk
from anyformer.specs.part_errors import error_origin
from anyformer.specs.services import service
from anyformer.stacks.stack import Stack

Offered = Literal["always", "without labels", "never"]


class Model(Part):
    """What every model description has. `family`, `architecture` and `source` say where it came from and let it go back
    there: `source` keeps the published config's fields that do not change the mathematics (token ids, labels, ...)."""

    width: int
    length: int | None = None  # the longest text it was made for, where no position table sets the limit
    head: Head | None = None
    state_name: str = "past_key_values"  # what the published class calls the decoding state
    state_offered: Offered = "always"  # when it returns one that nobody asked for
    init: Mapping[str, Initializer] = Table()
    # (parameter, the one whose storage it shares), by address; of two Parts that are alike, all that is in them
    ties: tuple[tuple[str, str], ...] = ()  # weight tying, such as tied embeddings
    family: str = ""
    architecture: str = ""
    source: Mapping[str, Any] = Table()
    note: str = ""

    # the fields that a text goes through from left to right where the head scores its tokens
    left_to_right: ClassVar[tuple[str, ...]] = ()
    pair: ClassVar[bool] = False  # an encoder reads one text and a decoder writes another
    target: ClassVar[str] = "embedding"  # the field with which the tokens are read that the head scores
    gives: ClassVar[tuple[str, ...]] = ()  # what Parts may need of the shape itself

    @property
    def towers(self) -> tuple[Model, ...]:
        """The models it is put together from, where it is."""
        return ()

    @property
    def readers(self) -> tuple[Model, ...]:
        """Every model in it that has an embedding, the one that reads texts first."""
        return self.towers or (self,)

    @property
    def writes(self) -> bool:
        """Whether this model scores next tokens, so that none may see a later one."""
        heads = (part for _, part in walk(self.head))
        return bool(self.left_to_right) and any(isinstance(part, (LMHead, VocabularyOutput)) for part in heads)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of a classifier's or tagger's labels, by their numbers; none where its config has none but
        numbers ("LABEL_0")."""
        stored = self.source.get("id2label") or {}
        names = tuple(str(stored[number]) for number in sorted(stored, key=int))
        return () if names == tuple(f"LABEL_{i}" for i in range(len(names))) else names

    def owner_of(self, name: str) -> str | None:
        """The parameter whose storage this one shares, by its address; None where it has its own."""
        return owner_of(self.ties, name)

    def shares(self, name: str) -> bool:
        """Whether a parameter, or all of a module, is one with another."""
        return any(is_within(name, side) or is_within(side, name) for tie in self.ties for side in tie)

    def with_labels(self, labels: Sequence[str]) -> Self:
        """The same model under these names of its labels."""
        others = {name: value for name, value in self.source.items() if name not in ("num_labels", "_num_labels")}
        numbers = {label: i for i, label in enumerate(labels)}
        table = {"id2label": {str(i): label for label, i in numbers.items()}, "label2id": numbers}
        return self.replace(source=Table({**others, **table}))

    def check(self) -> None:
        if self.width < 1:
            raise ValueError(f"{type(self).__name__}.width is {self.width}")
        at_least(self, 1, "length")
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
            raise ValueError(f"{ops:,} ops of languages in all layers together; at most {MAX_LANGUAGES:,} can be built")
        routers = {(type(part.router).__name__, part.num_experts) for part in parts if isinstance(part, MoE)}
        if self.head is not None and self.head.balance is not None and len(routers) > 1:
            found = " and ".join(f"{kind} of {count}" for kind, count in sorted(routers))
            raise ValueError(f"head.balance counts experts chosen in one way, here by {found}; set it to None")
        self.check_vocabulary()
        self.check_pixels()
        self.check_ties()
        if self.writes:
            self.check_writing(*self.left_to_right)
        self.check_needs()

    def sizes_left_behind(self, before: Part, path: str, changes: Mapping[str, Any]) -> str:
        """Widths inside of layers, and heads that together have the old width, after the model's width was changed."""
        home, _, field = path.rpartition(".")
        old = getattr(before, "width", None)
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
        return f"{path} is {self.width} now, and these did not follow: {', '.join(kept)}" if kept else ""

    def check_vocabulary(self) -> None:
        """A head over the vocabulary scores the tokens that the embedding before it reads."""
        name = self.target
        tokens = getattr(getattr(self, name, None), "tokens", None)
        for path, part in walk(self.head, "head"):
            if tokens is not None and isinstance(part, (LMHead, VocabularyOutput)):
                if part.vocab_size != tokens.vocab_size and not part.foreign:
                    raise ValueError(
                        f"{path}.vocab_size is {part.vocab_size} and {name}.tokens.vocab_size is {tokens.vocab_size}:"
                        " they count the same tokens, so change both together"
                    )

    def check_pixels(self) -> None:
        """A head that draws pixels draws those that the embedding reads, and one that reads features reads its."""
        read = dict(super().items()).get("embedding")
        for name in ("patch_size", "channels", "features"):
            drawn, given = getattr(self.head, name, None), getattr(read, name, None)
            if drawn is not None and given is not None and drawn != given:
                raise ValueError(f"head.{name} is {drawn} and embedding.{name} is {given}: change both together")

    def check_ties(self) -> None:
        """Parts that share all that they hold are described alike."""
        if len({name for name, _ in self.ties}) < len(self.ties):
            raise ValueError("ties: a parameter shares the storage of one other, and here one stands twice")
        for number, (name, owner) in enumerate(self.ties):
            if any(is_within(owner, tied) or is_within(tied, owner) for tied, _ in self.ties[number:]):
                raise ValueError(
                    f"ties: {name} is tied to {owner}, which is tied itself: tie both to the one that is not"
                )
            try:
                tied, shared = value_at(self, name), value_at(self, owner)
            except ValueError:
                continue  # parameters, which are found once there is a module
            if isinstance(tied, Part) and tied != shared:
                raise ValueError(f"ties: {name} and {owner} are one, and described differently: change both together")

    def check_writing(self, *names: str) -> None:
        """ValueError that names the first Part by which a token sees later ones, and the nearest that does not."""
        written = [(name, getattr(self, name)) for name in names]
        written += [(path, part) for path, part in walk(self.head, "head") if isinstance(part, LMHead)]
        for address, part in (found for path, each in written for found in parts_seeing_ahead(each, path)):
            kind = type(part).__name__
            if part.said is None:
                raise ValueError(
                    f"{address}: {kind} does not say what a token sees by it, and this model writes from left to right;"
                    f' say so where it is defined: class {kind}(..., sees="past"), or "itself" or "all"'
                )
            fix = f"; {part.causal_alternative} does not" if part.causal_alternative else ""
            raise ValueError(f"{address}: {kind} lets a token see the future{fix}")

    def check_needs(self) -> None:
        """What Parts need of what is read (an image's grid, the ids of tokens, ...) its embedding must give."""
        fields = dict(super().items())
        needed: set[str] = set()
        for name in ("embedding", "decoder_embedding", "encoder", "decoder", "head"):
            source = fields.get("embedding" if name in ("embedding", "encoder") else self.target)
            for address, part in walk(fields.get(name), name):
                for need in part.requires:
                    needed.add(need)
                    if source is not None and need not in (*source.gives, *self.gives):
                        found = f"{type(part).__name__} needs {need}, which {type(source).__name__} does not give"
                        raise ValueError(f"{address}: {found}; {GIVERS.get(need, 'another embedding')} does")
        for name in ("embedding", "decoder_embedding"):
            given = getattr(fields.get(name), "gives", ())
            if "a condition" in given and "a condition" not in needed:
                raise ValueError(f"{name}.condition: nothing in this model reads it; AdaptiveNorm and Gated do")
            if "an order" in given and "an order" not in needed:
                kind = type(fields[name]).__name__
                raise ValueError(f"{name}: nothing in this model reads the order that {kind} gives; TwoStreams does")

    def __str__(self) -> str:
        return tree(self)

    def _repr_html_(self) -> str:
        """In a notebook: the picture, and the description as text behind it."""
        return notebook_html(self)

    # -- from a description to a module -------------------------------------------------------------------------------

    def skeleton(self, kind: type[Site] = Site) -> Any:
        """The model on the meta device: shapes and addresses, no memory. It is built at a site of this kind."""
        try:
            with torch.device("meta"), _Unfilled():
                model = self.build(kind(width=self.width))
        except (TypeError, RuntimeError, AssertionError, ArithmeticError) as error:  # of torch, about sizes
            origin = error_origin(error)
            where = f"{origin}: {type(error).__name__}" if origin else "this description cannot be built"
            raise ValueError(f"{where}: {(str(error).splitlines() or [repr(error)])[0]}") from error
        model.tie()
        return model

    def make(self, seed: int, device: torch.device, dtype: torch.dtype | None) -> Any:
        """A model with the weights that the initialisation gives for this seed; on `meta` nothing is allocated."""
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
        """In the order data flows: width, embedding, stacks, then head and the rest."""
        last = Model.__annotations__.keys() - {"width", "length"}
        yield from sorted(super().items(), key=lambda item: item[0] in last)


def notebook_html(spec: Model) -> str:
    """The picture of a description, and its text folded away; the text alone where it cannot be built."""
    words = f"<pre>{html.escape(tree(spec))}</pre>"
    try:
        return f"{service('draw')(spec).svg}<details><summary>as text</summary>{words}</details>"
    except ValueError:
        return words


class _Unfilled(TorchFunctionMode):
    """On meta there is nothing to fill; and torch's random fills there import its whole compiler first (seconds)."""

    fills = frozenset(("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "xavier_uniform_"))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in self.fills:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))
