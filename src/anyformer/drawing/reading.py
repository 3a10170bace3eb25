"""From a description to an outline of its picture, by the kinds of its Parts and their places alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from anyformer.counting import Count
from anyformer.drawing.flow import Flow, entering
from anyformer.drawing.outline import (
    Added,
    Around,
    Card,
    Chain,
    Column,
    Fan,
    Layer,
    Layers,
    Outline,
    Side,
    Step,
    cards_in,
    changed,
    in_steps,
    marked,
)
from anyformer.drawing.words import counted, field_words, in_words, inside, name, number, phrases, runs, short, sized
from anyformer.models import Model
from anyformer.parts.embedding.text import Embedding
from anyformer.parts.head.base import Head
from anyformer.parts.init import is_within
from anyformer.parts.norm import Norm
from anyformer.parts.op import Op
from anyformer.parts.position.absolute import AbsolutePosition
from anyformer.parts.residual import Add
from anyformer.specs.part import Part, parts_in, walk
from anyformer.stacks.block import Block, Parallel, Steps
from anyformer.stacks.funnel import Funnel
from anyformer.stacks.perceiver import Perceiver
from anyformer.stacks.stack import Stack
from anyformer.stacks.stages import Stages
from anyformer.stacks.sublayer import Sublayer

STACKS = (Stack, Stages, Funnel, Perceiver)


class Reader:
    """A description and what was counted of it. Addresses are those of modules: layer 3 is `layers.3`."""

    def __init__(self, spec: Model, count: Count) -> None:
        self.sizes: dict[str, int] = {}  # parameters at or below an address
        self.below: dict[str, dict[str, int]] = {}  # and by the next name
        for address, size in count.parts.items():
            at = ""
            for each in address.split("."):
                self.sizes[at] = self.sizes.get(at, 0) + size
                inner = self.below.setdefault(at, {})
                inner[each] = inner.get(each, 0) + size
                at = f"{at}.{each}" if at else each
            self.sizes[address] = size
        self.spec = spec
        self.tied = {self.place(tied): self.place(owner) for tied, owner in spec.ties}

    def place(self, name: str) -> str:
        """The Part of a tie: itself, or the one whose parameter it is."""
        return name if any(path == name for path, _ in walk(self.spec)) else name.rpartition(".")[0]

    def note(self, address: str) -> str:
        size = self.sizes.get(address, 0)
        return short(size) if size else ""

    # -- cards --------------------------------------------------------------------------------------------------------

    def card(self, part: Part, address: str, role: str, width: int, apart: tuple[Part, ...] = ()) -> Card:
        """A Part with its phrases; what is tied says to what."""
        told = phrases(part, width, apart)
        here = [owner for tied, owner in self.tied.items() if is_within(tied, address) or is_within(address, tied)]
        ties = [f"tied to {owner}" for owner in here]
        kind = type(part).__name__
        return Card(address, role, name(part), (*told, *dict.fromkeys(ties)), self.note(address), kind=kind)

    def norm(self, part: Part | None, address: str) -> tuple[Card, ...]:
        return () if part is None else (self.card(part, address, "norm", 0),)

    def op(self, op: Part, address: str, width: int, shared: Part | None) -> Card:
        """A mixer or a feed-forward; mixers in it are rows of its card, experts a fan."""
        if op.routes:
            return self.experts(op, address, width)
        inner = [(at, part) for at, part in parts_in(op, address) if isinstance(part, Op)]
        card = self.card(op, address, role_of(op), width, tuple(part for _, part in inner))
        rows = tuple(self.op(part, at, width, shared) for at, part in inner)
        memory, biased = op.reads_memory, shared is not None and op.bias_heads is not None
        told = [phrase for phrase in card.phrases if not (memory and phrase.endswith(" mask"))]
        told += [f"with {name(shared)}"] if biased and shared is not None else []
        port = "memory" if memory else "bias" if biased else ""
        return dataclasses.replace(card, phrases=tuple(told), rows=rows, port=port)

    def experts(self, op: Any, address: str, width: int) -> Card:
        below = self.below.get(address, {})
        each = (sum(below.values()) - below.get("router", 0) - below.get("shared", 0)) // op.num_experts
        one = inside("", op.expert, op, width)
        told = [f"{number(op.num_experts)} experts, {op.router.top_k} active", f"each {one}, {short(each)}"]
        if op.shared is not None:
            told.append(f"shared {inside('', op.shared, op, width)}")
        router = in_words(type(op.router).__name__)
        fan = Fan(op.num_experts, op.router.top_k, router, op.shared is not None)
        return Card(address, "experts", name(op), tuple(told), self.note(address), fan=fan, kind=type(op).__name__)

    def whole(
        self, part: Part, address: str, role: str, width: int, apart: tuple[Part, ...] = (), names: tuple[str, ...] = ()
    ) -> Card:
        """An embedding or a head: what it is made of in rows, those of its modules that are no Parts too. What is drawn
        by itself (`apart`, at these names) is left out."""
        card, fields = self.card(part, address, role, width, apart), dict(part.items())
        own = self.sizes.get(address, 0) - sum(self.sizes.get(f"{address}.{each}", 0) for each in names)
        card = dataclasses.replace(card, note=short(own) if own else "")
        made = [each for each in self.below.get(address, {}) if each not in names]
        if len(made) < 2:
            return card
        rows, told = [], [*apart]
        for each in made:
            inner, at = fields.get(each), f"{address}.{each}"
            if isinstance(inner, Part):
                told.append(inner)
                row = self.card(inner, at, role, width)
                plain = field_words(each) in name(inner).lower()
                rows.append(row if plain else dataclasses.replace(row, title=f"{field_words(each)}: {row.title}"))
            else:
                title = sized(each, inner, part, width) if type(inner) is int else field_words(each)
                rows.append(Card(at, role, title, (), self.note(at)))
        left = self.card(part, address, role, width, tuple(told))
        inner_texts = {text for row in rows for text in row.texts}
        left = dataclasses.replace(left, phrases=tuple(text for text in left.phrases if text not in inner_texts))
        return dataclasses.replace(left, rows=tuple(rows), note=card.note)

    # -- layers -------------------------------------------------------------------------------------------------------

    def steps(self, block: Steps, address: str, width: int, shared: Part | None) -> Iterator[Step | Side]:
        for each, step in block.items():
            at = f"{address}.{each}"
            if isinstance(step, Parallel):
                yield Side(tuple(self.step(inner, f"{at}.{key}", width, shared) for key, inner in step.items()))
            elif isinstance(step, Steps):
                yield from self.steps(step, at, width, shared)
            else:
                yield self.step(step, at, width, shared)
            width = step.out_width(width)

    def step(self, step: Sublayer, address: str, width: int, shared: Part | None) -> Step:
        before, after, out = (
            self.norm(getattr(step, place), f"{address}.{place}") for place in ("pre_norm", "post_norm", "out_norm")
        )
        op = self.op(step.op, f"{address}.op", width, shared)
        join = "" if isinstance(step.residual, Add) else inside("", step.residual, step, width)
        return Step(before, op, after, out, join, step.normed_skip)

    def layers(self, stack: Stack, address: str, width: int) -> Layers:
        kinds = {"": stack.layers} if isinstance(stack.layers, Block) else dict(stack.layers)
        order = [stack.pattern[i % len(stack.pattern)] if stack.pattern else "" for i in range(stack.depth)]
        used = [kind for kind in dict.fromkeys(order)]
        found, widths = [], stack.widths(width)
        for kind in used:
            places = [i for i, each in enumerate(order) if each == kind]
            at = f"{address}.layers.{places[0]}"
            steps = tuple(self.steps(kinds[kind], at, widths[places[0]], stack.position))
            found.append(Layer(field_words(kind), steps, listed_places(places), self.note(at)))
        if len(found) > 1:
            found = [self.unlike(layer, found) for layer in found]
        notes = [f"{address.split('.')[0]} layers"]
        if len(stack.steps) != stack.depth:
            notes += [f"share {self.note(f'{address}.layers')}", f"of {counted(stack.depth, 'layers')}"]
        elif len(found) == 1 and found[0].note:
            notes.append(f"{found[0].note} each")
        shared = None
        if stack.position is not None:
            card = self.card(stack.position, f"{address}.position", "position", width)
            shared = dataclasses.replace(card, phrases=("shared by all layers", *card.phrases))
        pattern = tuple(used.index(kind) for kind in order)
        return Layers(address, tuple(found), pattern, len(stack.steps), tuple(notes), shared)

    def unlike(self, layer: Layer, all_kinds: Sequence[Layer]) -> Layer:
        """A kind of layer, with what not all the others have marked."""
        places = in_steps(tuple(all_kinds))
        others = [other for other in all_kinds if other is not layer]
        compared = [marked(layer, other, lambda card: places[card.address]) for other in others]
        found = [[*cards_in(each)] for each in compared]
        cards = {all_of[0].address: all_of for all_of in zip(*found, strict=True)}

        def join(card: Card) -> Card:
            versions = cards[card.address]
            new = frozenset(text for each in versions for text in each.marked)
            return dataclasses.replace(card, marked=new, unlike=any(each.unlike for each in versions))

        return changed(layer, join)

    # -- from the embedding to the head -------------------------------------------------------------------------------

    def embedding(self, part: Embedding, address: str, width: int, flow: Flow) -> Iterator[Any]:
        """What is read, the card, and above it the norms and positions that follow, in the order of the fields."""
        fields = dict(part.items())
        apart = [each for each, value in fields.items() if isinstance(value, (Norm, AbsolutePosition))]
        steps = dict.fromkeys((*getattr(part, "order", ()), *apart))
        order = [each for each in steps if each in apart or each in self.below.get(address, {})]
        while order and order[0] not in apart:  # what comes before the first of them stays in the card
            order.pop(0)
        card = self.whole(part, address, "embedding", width, tuple(fields[each] for each in apart), tuple(order))
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
                yield Added(card if plain else dataclasses.replace(card, title=f"{card.title} positions"))

    def trunk(self, part: Part, address: str, width: int, flow: Flow) -> Iterator[Any]:
        """Stacks, and what else the stream goes through."""
        if isinstance(part, Stack):
            yield self.stretches(part, address, width, flow) if part.reshapes else self.layers(part, address, width)
            yield from self.norm(part.norm, f"{address}.norm")
            if part.project is not None:
                at = f"{address}.project"
                yield Card(at, "resize", "Linear", (f"{width} → {part.project}",), self.note(at))
            if part.neck is not None:
                yield self.whole(part.neck, f"{address}.neck", "resize", width)
        elif any(isinstance(inner, Stack) for _, inner in walk(part)):
            yield self.chain(part, address, width, flow)
            yield from self.norm(getattr(part, "norm", None), f"{address}.norm")
        else:
            yield self.whole(part, address, "resize", width)

    def chain(self, part: Part, address: str, width: int, flow: Flow) -> Chain:
        """Stacks one after another. What is common to all is drawn once; a folded one says what it has of its own."""
        shapes = [*flow.through(part, width)]
        found = [(at, inner) for at, inner in parts_in(part, address) if isinstance(inner, Stack)]
        widths = [wide for _, wide in shapes] + [width] * len(found)
        stacks = []
        for i, ((at, inner), wide) in enumerate(zip(found, widths, strict=False), 1):
            last = at.rpartition(".")[2]
            title = f"stage {i}" if last.isdecimal() else field_words(last)
            layers = self.layers(inner, at, wide)
            stacks.append((title, at, layers, all_phrases(layers)))
        folded, details = self.folded(stacks)
        return Chain(tuple(self.joined(part, address, folded, [label for label, _ in shapes])), details)

    def stretches(self, stack: Stack, address: str, width: int, flow: Flow) -> Chain:
        """One stack in which the stream changes its shape: layers that are alike and stand together are folded."""
        order = tuple(stack.layer(i) for i in range(stack.depth))
        stacks, shapes, widths = [], [flow.shape(width)], stack.widths(width)
        for block, first, last in runs(order):
            at, times = f"{address}.layers.{first}", last - first + 1
            steps = tuple(self.steps(block, at, widths[first], None))
            layer = Layer("", steps, listed_places(range(first, last + 1)), self.note(at))
            layers = Layers(at, (layer,), (0,) * times, times, (layer.places,))
            stacks.append((layer.places, at, layers, self.numbers(block, widths[first])))
            flow = flow.stepped(stack.replace(layers=block, pattern=(), depth=times))
            shapes.append(flow.shape(widths[last + 1]))
        folded, details = self.folded(stacks)
        return Chain(tuple(alternating(folded, (), shapes[:-1])), details)

    def numbers(self, block: Steps, width: int) -> list[str]:
        """What the ops of a block say of themselves, without the Parts in them."""
        found = []
        for step in block.steps.values():
            if isinstance(step, Sublayer):
                found += phrases(step.op, width, tuple(part for _, part in parts_in(step.op)))
            width = step.out_width(width)
        return found

    def folded(
        self, stacks: Sequence[tuple[str, str, Layers, Sequence[str]]]
    ) -> tuple[list[Card], tuple[tuple[str, Layers], ...]]:
        """A card for each of several (title, address, layers, phrases) with what not all say, and one in full of those
        that differ in more than numbers."""
        common = set.intersection(*(set(said) for *_, said in stacks))
        folded: list[Card] = []
        details: list[tuple[str, Layers]] = []
        forms: dict[Any, str] = {}
        alike = len({form_of(layers) for _, _, layers, _ in stacks}) == 1
        for title, at, layers, said in stacks:
            form = form_of(layers)
            if form not in forms:
                forms[form] = title
                details.append((f"the layers of {title}", layers))
            own = [phrase for phrase in said if phrase not in common]
            like = () if forms[form] == title or alike else (f"as {forms[form]}",)
            times = "" if title.startswith("layer") else f" × {layers.times}"  # of which the title says how many
            folded.append(Card(at, "stack", f"{title}{times}", (*like, *own), self.note(at)))
        return folded, tuple(details)

    def joined(self, part: Part, address: str, folded: list[Card], shapes: list[str]) -> Iterator[Any]:
        """Folded stacks with what stands between them."""
        if isinstance(part, Funnel):
            between = [Card(f"{address}.pool", "resize", name(part.pool), ("T → T/2",))] * (len(part.stages) - 1)
            top = folded[len(part.stages) :]
            items = [*alternating(folded[: len(part.stages)], between, shapes)]
            if top:
                back = Card(f"{address}.top.lengthen", "resize", "Repeat", ("each token for all it was made of",))
                items = [items[0], Around((*items[1:], back)), *top]
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
        yield from alternating(folded, between[before:], shapes)


def alternating(stacks: Sequence[Card], between: Sequence[Card], shapes: Sequence[str]) -> Iterator[Any]:
    """One of these, one of those; what is left of the second kind stands at the end."""
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
    """What layers are made of, but for their numbers."""
    return tuple((card.role, card.title) for card in cards_in(layers))


def all_phrases(layers: Layers) -> list[str]:
    return [*dict.fromkeys(phrase for card in cards_in(layers) for phrase in card.phrases)]


def listed_places(places: Sequence[int]) -> str:
    """(0, 1, 2, 7) -> layers 0–2, 7"""
    lines = [*runs(tuple(place - i for i, place in enumerate(places)))]
    texts = [f"{places[a]}–{places[b]}" if b > a else str(places[a]) for _, a, b in lines]
    if len(texts) > 3:
        texts = [*texts[:2], "…", texts[-1]]
    return f"layer{'s' * (len(places) > 1)} {', '.join(texts).replace(', …,', ' …')}"


# -- the whole --------------------------------------------------------------------------------------------------------


def read(spec: Model, title: str, count: Count) -> Outline:
    """The outline of a model."""
    reader = Reader(spec, count)
    columns, top = columns_of(reader, spec, "", spec.width)
    return Outline(title, about(spec, count), tuple(map(Column, columns)), tuple(top), spec.pair, spec.ties)


def columns_of(reader: Reader, spec: Model, prefix: str, width: int) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """A column for each embedding and all that follows it, and what stands over them where there are several."""
    columns: list[list[Any]] = []
    top: list[Any] = []
    flow = Flow("", (), "", "T", None)
    out = wide = width
    fields = [(each, part) for each, part in spec.items() if isinstance(part, Part) and each != "head"]
    feeding = {each: inner for each, part in fields for _, inner in parts_in(part) if isinstance(inner, Model)}
    for each, part in sorted(fields, key=lambda field: field[0] not in feeding):  # what feeds the text stands before it
        address = f"{prefix}{each}"
        if each in feeding:
            tower = feeding[each]
            inner, above = columns_of(reader, tower, f"{address}.model.", tower.width)
            card = reader.whole(part, address, "resize", width, (tower,), ("model",))
            columns += [[*items, *above, card, f"N × {number(width)}"] for items in inner]
        elif isinstance(part, Model):
            inner, above = columns_of(reader, part, f"{address}.", part.width)
            columns += [[*items, *(above if len(inner) == 1 else ())] for items in inner]
        elif isinstance(part, Embedding):
            source = spec.pair and not columns
            flow = entering(part, width, "S" if source else "T", "decoder_" if spec.pair and columns else "")
            columns.append([*reader.embedding(part, address, width, flow), flow.shape(width)])
            wide = width
        else:
            columns = columns or [[]]
            columns[-1] += reader.trunk(part, address, wide, flow)
            wide = part.out_width(wide)
            out = wide
            flow = flow.after(part)
            columns[-1].append(flow.shape(wide))
    head = [] if spec.head is None else [reader.whole(spec.head, f"{prefix}head", "head", out), scores(spec.head, flow)]
    if len(columns) == 1 or spec.pair or feeding:
        columns[-1] += head
        return [tuple(column) for column in columns], top
    return [tuple(column) for column in columns], head


def scores(head: Any, flow: Flow) -> str:
    """The shape of what a head says, where its fields tell."""
    many = getattr(head, "vocab_size", None) or getattr(head, "num_labels", None)
    inner = [part for _, part in parts_in(head) if isinstance(part, Head)]
    if many is None:
        return scores(inner[0], flow) if inner else ""
    return number(many) if getattr(head, "pool", None) is not None else f"{flow.length} × {number(many)}"


def about(spec: Model, count: Count) -> str:
    """One line on the whole model."""
    models = [part for _, part in walk(spec) if isinstance(part, Model)]  # towers too
    stacks = [part for model in models for _, part in parts_in(model) if isinstance(part, STACKS)]
    depth = " + ".join(str(sum(len(s.steps) for _, s in walk(each) if isinstance(s, Stack))) for each in stacks)
    words = [spec.architecture, f"{depth} layers" if depth else "", f"width {number(spec.width)}"]
    words.append(f"{short(count.parameters)} parameters")
    if count.active < count.parameters:
        words[-1] += f", {short(count.active)} active"
    return " · ".join(word for word in words if word)
