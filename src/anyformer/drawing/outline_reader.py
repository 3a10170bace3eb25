"""Convert a description to the outline of its picture, from the types and addresses of its Parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from anyformer.counting import Count
from anyformer.drawing.flow import Flow, embedding_flow
from anyformer.drawing.outline import (
    AddedCard,
    Card,
    Chain,
    Fan,
    Layer,
    Layers,
    ModelOutline,
    ParallelSteps,
    ResidualStep,
    SkipGroup,
    StreamColumn,
    cards_in,
    map_cards,
    mark_differences,
    step_positions,
)
from anyformer.drawing.part_labels import (
    describe_int,
    describe_part,
    field_words,
    in_words,
    name,
    number,
    phrases,
    runs,
    short,
)
from anyformer.models import Model
from anyformer.parts.base import AbsolutePosition, Embedding, HasVocabulary
from anyformer.parts.embedding.text import TextEmbedding
from anyformer.parts.head.base import Head
from anyformer.parts.init import is_within
from anyformer.parts.norm import Norm
from anyformer.parts.op import Op
from anyformer.parts.residual import Add
from anyformer.specs.messages import amount
from anyformer.specs.part import Part, parts_in, walk
from anyformer.stacks.block import Block, Parallel, Steps
from anyformer.stacks.funnel import Funnel
from anyformer.stacks.perceiver import Perceiver
from anyformer.stacks.stack import Stack
from anyformer.stacks.stages import Stages
from anyformer.stacks.step_kinds import NormedShortcut
from anyformer.stacks.sublayer import Sublayer

STACKS = (Stack, Stages, Funnel, Perceiver)


class OutlineReader:
    """Reads a description and its parameter counts. Addresses are module names: layer 3 is `layers.3`."""

    def __init__(self, spec: Model, count: Count) -> None:
        self.sizes: dict[str, int] = {}  # parameters at or below an address
        self.below: dict[str, dict[str, int]] = {}  # the same, split by the next part of the address
        for address, size in count.parts.items():
            at = ""
            for each in address.split("."):
                self.sizes[at] = self.sizes.get(at, 0) + size
                inner = self.below.setdefault(at, {})
                inner[each] = inner.get(each, 0) + size
                at = f"{at}.{each}" if at else each
            self.sizes[address] = size
        self.spec = spec
        self.tied = {self.part_address(tied): self.part_address(owner) for tied, owner in spec.ties}

    def part_address(self, name: str) -> str:
        """Return the address of a tied Part, or of the Part that contains a tied parameter."""
        return name if any(path == name for path, _ in walk(self.spec)) else name.rpartition(".")[0]

    def note(self, address: str) -> str:
        size = self.sizes.get(address, 0)
        return short(size) if size else ""

    # -- cards --------------------------------------------------------------------------------------------------------

    def card(self, part: Part, address: str, role: str, width: int, apart: tuple[Part, ...] = ()) -> Card:
        """Return the card of a Part with its phrases and ties."""
        texts = phrases(part, width, apart)
        owners = [owner for tied, owner in self.tied.items() if is_within(tied, address) or is_within(address, tied)]
        ties = [f"tied to {owner}" for owner in owners]
        kind = type(part).__name__
        return Card(address, role, name(part), (*texts, *dict.fromkeys(ties)), self.note(address), kind=kind)

    def norm(self, part: Part | None, address: str) -> tuple[Card, ...]:
        return () if part is None else (self.card(part, address, "norm", 0),)

    def op(self, op: Part, address: str, width: int, shared: Part | None) -> Card:
        """Return the card of an op. Ops in it are rows; experts are a fan."""
        if op.routes:
            return self.experts(op, address, width)
        inner = [(at, part) for at, part in parts_in(op, address) if isinstance(part, Op)]
        card = self.card(op, address, role_of(op), width, tuple(part for _, part in inner))
        rows = tuple(self.op(part, at, width, shared) for at, part in inner)
        memory, biased = op.reads_memory, shared is not None and op.bias_heads is not None
        texts = [phrase for phrase in card.phrases if not (memory and phrase.endswith(" mask"))]
        texts += [f"with {name(shared)}"] if biased and shared is not None else []
        port = "memory" if memory else "bias" if biased else ""
        return dataclasses.replace(card, phrases=tuple(texts), rows=rows, port=port)

    def experts(self, op: Any, address: str, width: int) -> Card:
        below = self.below.get(address, {})
        each = (sum(below.values()) - below.get("router", 0) - below.get("shared", 0)) // op.num_experts
        one = describe_part("", op.expert, op, width)
        texts = [f"{number(op.num_experts)} experts, {op.router.top_k} active", f"each {one}, {short(each)}"]
        if op.shared is not None:
            texts.append(f"shared {describe_part('', op.shared, op, width)}")
        router = in_words(type(op.router).__name__)
        fan = Fan(op.num_experts, op.router.top_k, router, op.shared is not None)
        return Card(address, "experts", name(op), tuple(texts), self.note(address), fan=fan, kind=type(op).__name__)

    def module_card(
        self, part: Part, address: str, role: str, width: int, apart: tuple[Part, ...] = (), names: tuple[str, ...] = ()
    ) -> Card:
        """Return the card of an embedding or a head, with its Parts and modules as rows. Parts in `apart` and modules
        in `names` are left out: they have their own cards."""
        card, fields = self.card(part, address, role, width, apart), dict(part.items())
        own = self.sizes.get(address, 0) - sum(self.sizes.get(f"{address}.{each}", 0) for each in names)
        card = dataclasses.replace(card, note=short(own) if own else "")
        modules = [each for each in self.below.get(address, {}) if each not in names]
        if len(modules) < 2:
            return card
        rows, separate = [], [*apart]
        for each in modules:
            inner, at = fields.get(each), f"{address}.{each}"
            inside = (
                [(at, inner)] if isinstance(inner, Part) else [*parts_in(inner, at)] if type(inner) is tuple else []
            )
            for place, item in inside:
                separate.append(item)
                row, title = self.card(item, place, role, width), name(item)
                if field_words(each) not in title.lower():
                    title = f"{field_words(each)}: {title}"
                elif type(inner) is tuple:  # "prefix" for "Prefix Tokens": short rows share a line
                    title = title.replace(in_words(type(item).__name__), field_words(each))
                rows.append(dataclasses.replace(row, title=title))
            if not inside:
                title = describe_int(each, inner, part, width) if type(inner) is int else field_words(each)
                rows.append(Card(at, role, title, (), self.note(at)))
        rest = self.card(part, address, role, width, tuple(separate))
        inner_texts = {text for row in rows for text in row.texts}
        rest = dataclasses.replace(rest, phrases=tuple(text for text in rest.phrases if text not in inner_texts))
        return dataclasses.replace(rest, rows=tuple(rows), note=card.note)

    # -- layers -------------------------------------------------------------------------------------------------------

    def steps(
        self, block: Steps, address: str, width: int, shared: Part | None
    ) -> Iterator[ResidualStep | ParallelSteps]:
        for each, step in block.items():
            at = f"{address}.{each}"
            if isinstance(step, Parallel):
                yield ParallelSteps(
                    tuple(self.step(inner, f"{at}.{key}", width, shared) for key, inner in step.items())
                )
            elif isinstance(step, Steps):
                yield from self.steps(step, at, width, shared)
            else:
                yield self.step(step, at, width, shared)
            width = step.out_width(width)

    def step(self, step: Sublayer, address: str, width: int, shared: Part | None) -> ResidualStep:
        before, after, out = (
            self.norm(getattr(step, field), f"{address}.{field}") for field in ("pre_norm", "post_norm", "out_norm")
        )
        op = self.op(step.op, f"{address}.op", width, shared)
        join = "" if isinstance(step.residual, Add) else describe_part("", step.residual, step, width)
        return ResidualStep(before, op, after, out, join, isinstance(step, NormedShortcut))

    def layers(self, stack: Stack, address: str, width: int) -> Layers:
        kinds = {"": stack.layers} if isinstance(stack.layers, Block) else dict(stack.layers)
        order = [stack.pattern[i % len(stack.pattern)] if stack.pattern else "" for i in range(stack.depth)]
        used = [kind for kind in dict.fromkeys(order)]
        layers, widths = [], stack.widths(width)
        for kind in used:
            indices = [i for i, each in enumerate(order) if each == kind]
            at = f"{address}.layers.{indices[0]}"
            steps = tuple(self.steps(kinds[kind], at, widths[indices[0]], stack.position))
            layers.append(Layer(field_words(kind), steps, describe_layers(indices), self.note(at)))
        if len(layers) > 1:
            layers = [self.compare_kinds(layer, layers) for layer in layers]
        notes = [f"{address.split('.')[0]} layers"]
        if len(stack.steps) != stack.depth:
            notes += [f"share {self.note(f'{address}.layers')}", f"of {amount(stack.depth, 'layer')}"]
        elif len(layers) == 1 and layers[0].note:
            notes.append(f"{layers[0].note} each")
        shared = None
        if stack.position is not None:
            card = self.card(stack.position, f"{address}.position", "position", width)
            shared = dataclasses.replace(card, phrases=("shared by all layers", *card.phrases))
        pattern = tuple(used.index(kind) for kind in order)
        return Layers(address, tuple(layers), pattern, len(stack.steps), tuple(notes), shared)

    def compare_kinds(self, layer: Layer, all_kinds: Sequence[Layer]) -> Layer:
        """Return a kind of layer with its differences from the other kinds marked."""
        positions = step_positions(tuple(all_kinds))
        others = [other for other in all_kinds if other is not layer]
        compared = [mark_differences(layer, other, lambda card: positions[card.address]) for other in others]
        versions = [[*cards_in(each)] for each in compared]
        cards = {all_of[0].address: all_of for all_of in zip(*versions, strict=True)}

        def join(card: Card) -> Card:
            versions = cards[card.address]
            new = frozenset(text for each in versions for text in each.differing)
            return dataclasses.replace(card, differing=new, differs=any(each.differs for each in versions))

        return map_cards(layer, join)

    # -- from the embedding to the head -------------------------------------------------------------------------------

    def embedding(self, part: Embedding, address: str, width: int, flow: Flow) -> Iterator[Any]:
        """Yield the inputs, the card of the embedding, and above it its norms and positions in the order of use."""
        fields = dict(part.items())
        apart = [each for each, value in fields.items() if isinstance(value, (Norm, AbsolutePosition))]
        steps = dict.fromkeys((*(part.order if isinstance(part, TextEmbedding) else ()), *apart))
        order = [each for each in steps if each in apart or each in self.below.get(address, {})]
        while order and order[0] not in apart:  # modules before the first norm or position are rows of the card
            order.pop(0)
        card = self.module_card(part, address, "embedding", width, tuple(fields[each] for each in apart), tuple(order))
        yield Card(f"{address}.inputs", "input", flow.title, flow.phrases, flow.note)
        yield card
        for each in order:
            at, value = f"{address}.{each}", fields.get(each)
            if each not in apart:
                yield Card(at, "resize", field_words(each), (), self.note(at))
            elif isinstance(value, Norm):
                yield from self.norm(value, at)
            elif isinstance(value, AbsolutePosition):
                card = self.card(value, at, "position", width)
                plain = "position" in card.title.lower()
                yield AddedCard(card if plain else dataclasses.replace(card, title=f"{card.title} positions"))

    def trunk(self, part: Part, address: str, width: int, flow: Flow) -> Iterator[Any]:
        """Yield the items of a stack or of another Part between embedding and head."""
        if isinstance(part, Stack):
            yield self.stretches(part, address, width, flow) if part.reshapes else self.layers(part, address, width)
            yield from self.norm(part.norm, f"{address}.norm")
            if part.neck is not None:
                yield self.module_card(part.neck, f"{address}.neck", "resize", width)
        elif any(isinstance(inner, Stack) for _, inner in walk(part)):
            yield self.chain(part, address, width, flow)
            yield from self.norm(part.norm if isinstance(part, Stages) else None, f"{address}.norm")
        else:
            yield self.module_card(part, address, "resize", width)

    def chain(self, part: Part, address: str, width: int, flow: Flow) -> Chain:
        """Return consecutive stacks, folded: the card of a stack has only the phrases that not all stacks share."""
        shapes = [*flow.through(part, width)]
        inner_stacks = [(at, inner) for at, inner in parts_in(part, address) if isinstance(inner, Stack)]
        widths = [inner_width for _, inner_width in shapes] + [width] * len(inner_stacks)
        stacks = []
        for i, ((at, inner), inner_width) in enumerate(zip(inner_stacks, widths, strict=False), 1):
            last = at.rpartition(".")[2]
            title = f"stage {i}" if last.isdecimal() else field_words(last)
            layers = self.layers(inner, at, inner_width)
            stacks.append((title, at, layers, all_phrases(layers)))
        folded, details = self.fold(stacks)
        return Chain(tuple(self.chain_items(part, address, folded, [label for label, _ in shapes])), details)

    def stretches(self, stack: Stack, address: str, width: int, flow: Flow) -> Chain:
        """Return one stack whose layers change the shape of the stream, with runs of equal layers folded."""
        order = tuple(stack.layer(i) for i in range(stack.depth))
        stacks, shapes, widths = [], [flow.shape(width)], stack.widths(width)
        for block, first, last in runs(order):
            at, times = f"{address}.layers.{first}", last - first + 1
            steps = tuple(self.steps(block, at, widths[first], None))
            layer = Layer("", steps, describe_layers(range(first, last + 1)), self.note(at))
            layers = Layers(at, (layer,), (0,) * times, times, (layer.indices,))
            stacks.append((layer.indices, at, layers, self.numbers(block, widths[first])))
            flow = flow.step_down(stack.replace(layers=block, pattern=(), depth=times))
            shapes.append(flow.shape(widths[last + 1]))
        folded, details = self.fold(stacks)
        return Chain(tuple(alternate(folded, (), shapes[:-1])), details)

    def numbers(self, block: Steps, width: int) -> list[str]:
        """Return the phrases of a block's ops, without phrases for the Parts in them."""
        texts = []
        for step in block.steps.values():
            if isinstance(step, Sublayer):
                texts += phrases(step.op, width, tuple(part for _, part in parts_in(step.op)))
            width = step.out_width(width)
        return texts

    def fold(
        self, stacks: Sequence[tuple[str, str, Layers, Sequence[str]]]
    ) -> tuple[list[Card], tuple[tuple[str, Layers], ...]]:
        """Return a card for each (title, address, layers, phrases), without the phrases that all share; and the stacks
        to draw in full: one of each group that differs only in numbers."""
        common = set.intersection(*(set(texts) for *_, texts in stacks))
        folded: list[Card] = []
        details: list[tuple[str, Layers]] = []
        forms: dict[Any, str] = {}
        alike = len({form_of(layers) for _, _, layers, _ in stacks}) == 1
        for title, at, layers, texts in stacks:
            form = form_of(layers)
            if form not in forms:
                forms[form] = title
                details.append((f"the layers of {title}", layers))
            special = [phrase for phrase in texts if phrase not in common]
            like = () if forms[form] == title or alike else (f"as {forms[form]}",)
            times = "" if title.startswith("layer") else f" × {layers.times}"  # "layers 0–2" already contains it
            folded.append(Card(at, "stack", f"{title}{times}", (*like, *special), self.note(at)))
        return folded, tuple(details)

    def chain_items(self, part: Part, address: str, folded: list[Card], shapes: list[str]) -> Iterator[Any]:
        """Yield folded stacks with the Parts between them."""
        if isinstance(part, Funnel):
            between = [Card(f"{address}.pool", "resize", name(part.pool), ("T → T/2",))] * (len(part.stages) - 1)
            top = folded[len(part.stages) :]
            items = [*alternate(folded[: len(part.stages)], between, shapes)]
            if top:
                back = Card(f"{address}.top.lengthen", "resize", "Repeat", ("each pooled token, to the full length",))
                items = [items[0], SkipGroup((*items[1:], back)), *top]
            yield from items
            return
        if isinstance(part, Perceiver):
            yield self.card(part.read, f"{address}.read", "cross", part.width or 0)
            yield from (*shapes, *folded)
            if part.write is not None:
                yield self.card(part.write, f"{address}.write", "cross", part.write.width or 0)
            return
        others = [(at, each) for at, each in parts_in(part, address) if not isinstance(each, (Stack, Norm))]
        between = [self.card(each, at, "resize", 0) for at, each in others]
        before = max(len(between) - len(folded) + 1, 0) if isinstance(part, Stages) else 0
        yield from (*between[:before], *shapes[:before])
        yield from alternate(folded, between[before:], shapes)


def alternate(stacks: Sequence[Card], between: Sequence[Card], shapes: Sequence[str]) -> Iterator[Any]:
    """Yield stacks with the cards and shapes between them, and then the remaining cards."""
    for i, stack in enumerate(stacks):
        yield stack
        if i < len(between):
            yield between[i]
        if i + 1 < len(shapes):
            yield shapes[i + 1]
    yield from between[len(stacks) :]


def role_of(op: Part) -> str:
    return "cross" if op.reads_memory else "feedforward" if op.sees == "itself" else "mixer"


def form_of(layers: Layers) -> tuple[tuple[str, str], ...]:
    """Return the structure of layers without their numbers."""
    return tuple((card.role, card.title) for card in cards_in(layers))


def all_phrases(layers: Layers) -> list[str]:
    return [*dict.fromkeys(phrase for card in cards_in(layers) for phrase in card.phrases)]


def describe_layers(indices: Sequence[int]) -> str:
    """(0, 1, 2, 7) -> layers 0–2, 7"""
    lines = [*runs(tuple(index - i for i, index in enumerate(indices)))]
    texts = [f"{indices[a]}–{indices[b]}" if b > a else str(indices[a]) for _, a, b in lines]
    if len(texts) > 3:
        texts = [*texts[:2], "…", texts[-1]]
    return f"layer{'s' * (len(indices) > 1)} {', '.join(texts).replace(', …,', ' …')}"


# -- models -----------------------------------------------------------------------------------------------------------


def read(spec: Model, title: str, count: Count) -> ModelOutline:
    """Return the outline of a model."""
    reader = OutlineReader(spec, count)
    columns, top = columns_of(reader, spec, "", spec.width)
    return ModelOutline(title, about(spec, count), tuple(map(StreamColumn, columns)), tuple(top), spec.pair, spec.ties)


def columns_of(reader: OutlineReader, spec: Model, prefix: str, width: int) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """Return one column per embedding with the Parts after it, and the items above all columns if they join."""
    columns: list[list[Any]] = []
    top: list[Any] = []
    flow = Flow("", (), "", "T", None)
    out = stream_width = width
    fields = [(each, part) for each, part in spec.items() if isinstance(part, Part) and each != "head"]
    feeding = {each: inner for each, part in fields for _, inner in parts_in(part) if isinstance(inner, Model)}
    for each, part in sorted(fields, key=lambda field: field[0] not in feeding):  # towers first, then the text
        address = f"{prefix}{each}"
        if each in feeding:
            tower = feeding[each]
            inner, above = columns_of(reader, tower, f"{address}.model.", tower.width)
            card = reader.module_card(part, address, "resize", width, (tower,), ("model",))
            columns += [[*items, *above, card, f"N × {number(width)}"] for items in inner]
        elif isinstance(part, Model):
            inner, above = columns_of(reader, part, f"{address}.", part.width)
            columns += [[*items, *(above if len(inner) == 1 else ())] for items in inner]
        elif isinstance(part, Embedding):
            source = spec.pair and not columns
            flow = embedding_flow(part, width, "S" if source else "T", "decoder_" if spec.pair and columns else "")
            columns.append([*reader.embedding(part, address, width, flow), flow.shape(width)])
            stream_width = width
        else:
            columns = columns or [[]]
            columns[-1] += reader.trunk(part, address, stream_width, flow)
            stream_width = part.out_width(stream_width)
            out = stream_width
            flow = flow.after_part(part)
            columns[-1].append(flow.shape(stream_width))
    head = (
        []
        if spec.head is None
        else [reader.module_card(spec.head, f"{prefix}head", "head", out), scores(spec.head, flow)]
    )
    if len(columns) == 1 or spec.pair or feeding:
        columns[-1] += head
        return [tuple(column) for column in columns], top
    return [tuple(column) for column in columns], head


def scores(head: Head, flow: Flow) -> str:
    """Return the output shape of a head, or "" if its fields do not determine it."""
    classes = head.vocab_size if isinstance(head, HasVocabulary) else head.num_labels
    inner = [part for _, part in parts_in(head) if isinstance(part, Head)]
    if classes is None:
        return scores(inner[0], flow) if inner else ""
    return number(classes) if head.pool is not None else f"{flow.length} × {number(classes)}"


def about(spec: Model, count: Count) -> str:
    """Return one line about the whole model: architecture, layers, width, parameters."""
    models = [part for _, part in walk(spec) if isinstance(part, Model)]  # towers too
    stacks = [part for model in models for _, part in parts_in(model) if isinstance(part, STACKS)]
    depth = " + ".join(str(sum(len(s.steps) for _, s in walk(each) if isinstance(s, Stack))) for each in stacks)
    words = [spec.architecture, f"{depth} layers" if depth else "", f"width {number(spec.width)}"]
    words.append(f"{short(count.parameters)} parameters")
    if count.active < count.parameters:
        words[-1] += f", {short(count.active)} active"
    return " · ".join(word for word in words if word)
