"""Random descriptions, made from the Parts' own fields: each slot gets any kind that its type allows, each number a
small one. A new Part is drawn as soon as it is declared, without a line here, unless a field of it has a meaning that
its name and type do not say; then one line in FIELDS says it.

What is drawn is the JSON of a description, as a user would write it, so that one which is refused can be shown too.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal

import hypothesis.strategies as st

from anyformer.parts.base import Embedding
from anyformer.parts.embedding.text import STEPS
from anyformer.parts.head.base import Head
from anyformer.parts.init import Initializer
from anyformer.parts.op import Op
from anyformer.runtime.mask import Mask
from anyformer.specs.codec import decode
from anyformer.specs.part import Part, default_values, hints
from anyformer.specs.slots import kinds as every_kind
from architectures import grids

every_kind()

# where the kinds that models are made of stand; other tests declare Parts of their own, and what runs are made of
PARTS = ("anyformer.parts.", "anyformer.stacks.", "anyformer.runtime.mask", "anyformer.models")
VOCABULARY, LENGTH, ROOM = 40, 12, 96  # tokens; of a text; of the longest text, pads and all
SAMPLES, IMAGE = 120, (8, 12)


@dataclasses.dataclass(frozen=True)
class Place:
    """What surrounds a slot."""

    width: int = 16
    heads: int = 2
    writes: bool = False  # the stack is one that writes from left to right
    source: str = "input_ids"  # what the model reads
    shortened: bool = False  # a text may be shorter here than where it was read
    memory: bool = False  # there is one to look at
    patch: list[int] | None = None  # of an image
    features: int = 8  # channels of a sound, before they are projected
    gives: tuple[str, ...] = ()  # what parts may need of the embedding
    nested: int = 0  # how many ops, or positions, it is in
    reshapes: bool = False  # the stream may get wider here, and its grid coarser
    masks: int = 0  # how many masks
    careless: bool = False  # what does not fit is drawn too: it must be refused


Draw = Callable[[Any], Any]
OMITTED = object()


def description(source: str | None = None) -> st.SearchStrategy[dict[str, Any]]:
    """Any model, or one of a single stack that reads `source`."""
    return st.composite(_model)(source)


def concrete(kind: type) -> bool:
    """Whether a kind can stand in a description by itself: it builds or does something that its base does not."""
    ours = (other for other in Part.kinds.values() if other.__module__.startswith(PARTS))
    return not any(kind in other.__bases__ for other in ours) or kind in CONCRETE_BASES


def kinds(base: type) -> list[str]:
    """The names of all kinds that a slot of this type takes."""
    ours = {name: kind for name, kind in Part.kinds.items() if kind.__module__.startswith(PARTS)}
    return [name for name, kind in ours.items() if issubclass(kind, base) and concrete(kind)]


# bases that are something themselves: one that is only a slot declares no `build`
CONCRETE_BASES = {kind for kind in Part.kinds.values() if "build" in vars(kind)}


def _mentioned(hint: Any) -> Iterator[type]:
    """The Parts that a type names."""
    if isinstance(hint, type) and issubclass(hint, Part):
        yield hint
    for inner in typing.get_args(hint):
        yield from _mentioned(inner)


# -- one Part ---------------------------------------------------------------------------------------------------------


def choose(draw: Draw, names: list[str]) -> str:
    """Each kind of a slot is chosen here, so that a test sees which were there to choose from."""
    return draw(st.sampled_from(names))


def part(draw: Draw, base: type, place: Place) -> dict[str, Any]:
    """Any kind of `base`, as JSON."""
    return fields(draw, choose(draw, fitting(kinds(base), place)), place)


def fitting(names: list[str], place: Place) -> list[str]:
    """Those that find what they need, and see no future where a model writes; all of them where one is careless."""
    return [name for name in names if fits(name, place)] or names


def fits(name: str, place: Place) -> bool:
    found = set(needs(name)) <= set(place.gives) and not (place.writes and looks_ahead(Part.kinds[name]))
    found = found and (name not in grids.ON_GRIDS or bool({"an image", "a video"} & set(place.gives)))
    return found or place.careless


def possible(hint: Any, place: Place) -> bool:
    """Whether there is something of this type that fits."""
    bases = list(_mentioned(hint))
    return not bases or any(fits(name, place) for base in bases for name in kinds(base))


def looks_ahead(kind: type[Part]) -> bool:
    """Whatever its fields are."""
    return kind.said == "all" and kind.reaches is Part.reaches


def needs(name: str) -> tuple[str, ...]:
    found = getattr(Part.kinds[name], "requires", ())
    return found if isinstance(found, tuple) else ()


def fields(draw: Draw, name: str, place: Place) -> dict[str, Any]:
    """A Part of one kind, its fields random. What it refuses by itself is drawn again, a few times."""
    for _ in range(5):
        made = fields_once(draw, name, place)
        if place.careless or name in ("Sublayer", "Stack") or not refused(made):
            break
    return made


def fields_once(draw: Draw, name: str, place: Place) -> dict[str, Any]:
    """About half of the fields that have a default keep it."""
    kind = Part.kinds[name]
    made: dict[str, Any] = {"kind": name}
    defaults = default_values(kind)
    for field, hint in hints(kind).items():
        own = rule(kind, field)
        told = (not place.careless and (kind.__name__, field) in UNFIT) or (field == "mask" and place.writes)
        if field in defaults and (own is KEPT or not (told or draw(st.booleans()))):
            continue
        value = own(draw, place) if callable(own) else draw(own) if own is not None else value_of(draw, hint, place)
        if value is not OMITTED:
            made[field] = value
    return made


def rule(kind: type, field: str) -> Any:
    """The line of FIELDS for a field: that of the kind or of a base it has it from, else that of the name alone."""
    for base in kind.__mro__:
        if (found := FIELDS.get(f"{base.__name__}.{field}")) is not None:
            return found
    return FIELDS.get(field)


def value_of(draw: Draw, hint: Any, place: Place) -> Any:
    """Any small value of a type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        args = tuple(arg for arg in args if possible(arg, place)) or args
        return value_of(draw, draw(st.sampled_from(sorted(args, key=lambda a: a is not type(None)))), place)
    if origin is Literal:
        return draw(st.sampled_from(args))
    if origin is tuple and args[1:] == (...,):
        return [value_of(draw, args[0], place) for _ in range(draw(st.integers(1, 2)))]
    if hint in SIMPLE:
        return draw(SIMPLE[hint])
    assert isinstance(hint, type) and issubclass(hint, Part), f"no rule for a field of type {hint}"
    return part(draw, hint, place)


SIMPLE: dict[Any, Any] = {
    type(None): st.none(), bool: st.booleans(), int: st.integers(1, 4), float: st.sampled_from((1.0, 0.5, 2.0)),
}  # fmt: skip

# -- fields that their type does not tell -----------------------------------------------------------------------------


def mask(draw: Draw, place: Place) -> dict[str, Any]:
    """Nested no deeper than twice. Where a model writes, it begins with Causal."""
    inner, causal = dataclasses.replace(place, masks=place.masks + 1), {"kind": "Causal"}
    if place.writes and not place.careless and not place.masks:
        return {"kind": "All", "masks": [causal, mask(draw, inner)]} if draw(st.booleans()) else causal
    names = [name for name in kinds(Mask) if place.masks < 2 or not _mentions(name, Mask)]
    return fields(draw, choose(draw, names), inner)


def _mentions(name: str, base: type) -> bool:
    return any(issubclass(kind, base) for hint in hints(Part.kinds[name]).values() for kind in _mentioned(hint))


def masks(draw: Draw, place: Place) -> list[dict[str, Any]]:
    return [mask(draw, place) for _ in range(draw(st.integers(1, 2)))]


def absolute(draw: Draw, place: Place) -> dict[str, Any]:
    """A position scheme of the embedding; sums and trees hold plain ones."""
    base = Part.kinds["AbsolutePosition"]
    names = [name for name in fitting(kinds(base), place) if not place.nested or not _mentions(name, base)]
    names = [name for name in names if name not in NEVER_DRAWN]
    return fields(draw, choose(draw, names), dataclasses.replace(place, nested=place.nested + 1))


def op(draw: Draw, place: Place) -> dict[str, Any]:
    """Any mixer or feed-forward."""
    names = [
        name
        for name in fitting(OPS, place)
        if not place.nested or name not in ("Windows", "Unused", "LanguageSpecific")
    ]
    inner = dataclasses.replace(place, nested=place.nested + 1)
    for _ in range(5):
        made = fields(draw, choose(draw, names), inner)
        if not place.writes or place.careless or refused(made) or decode(made).sees in ("itself", "past"):
            break
    return made


def attention_position(draw: Draw, place: Place) -> dict[str, Any]:
    return part(draw, Part.kinds["AttentionPosition"], place)


def shared_position(draw: Draw, place: Place) -> dict[str, Any] | None:
    if draw(st.integers(0, 3)):
        return None
    if place.careless:
        return attention_position(draw, place)
    return fields(draw, draw(st.sampled_from(("BucketedBias", "DistanceBias", "Alibi"))), place)


def slip(values: Any) -> Callable[[Draw, Place], Any]:
    """A field that only the careless fill in."""
    return lambda draw, place: draw(values) if place.careless else OMITTED


def landmarks(draw: Draw, place: Place) -> int:
    """As many as tokens where the number of these is not known."""
    whole = place.shortened or place.source not in ("input_ids", "inputs_embeds")
    return LENGTH if whole else draw(st.sampled_from((LENGTH, 4, 6)))


def writing(draw: Draw, place: Place) -> dict[str, Any]:
    """What tells vectors that are written from each other."""
    return fields(draw, choose(draw, ["Learned", "Sinusoidal"]), place)


def pool(draw: Draw, place: Place) -> dict[str, Any]:
    made = fields(draw, "Pool", place)
    if "token ids" not in place.gives and not place.careless and made.get("take") in ("last", "token"):
        made["take"] = "mean"
    seeds = {"seeds": fields(draw, "Seeds", place), "dense": True}
    return made | {"last": {"padding_token": 1}, "token": {"token": 3}, "seeds": seeds}.get(made.get("take", ""), {})


def memory(draw: Draw, place: Place) -> bool:
    return place.memory and draw(st.booleans())


def causal(draw: Draw, place: Place) -> bool:
    return place.writes or draw(st.booleans())


def score_changes(draw: Draw, place: Place) -> list[dict[str, Any]]:
    names = draw(st.lists(st.sampled_from(("SoftCap", "LearnedScale", "TalkingHeads")), max_size=2, unique=True))
    return [{"kind": name, **({"bound": 5.0} if name == "SoftCap" else {})} for name in names]


def heads(draw: Draw, place: Place) -> int:
    return draw(st.sampled_from((place.heads, 3))) if place.careless else place.heads


def grid(draw: Draw, place: Place) -> list[int]:
    return draw(st.sampled_from(([4, 4], [2, 4])))


def patch(draw: Draw, place: Place) -> list[int]:
    """Those that were embedded."""
    return grid(draw, place) if place.careless or place.patch is None else place.patch


def patch_positions(draw: Draw, place: Place) -> dict[str, Any] | None:
    made = {"kind": "Learned", "length": draw(st.sampled_from((6, 12))), "offset": draw(st.sampled_from((0, 1)))}
    return None if draw(st.booleans()) else made


def prefix_tokens(draw: Draw, place: Place) -> list[dict[str, Any]]:
    """At most two groups of tokens; those without a position are registers."""
    return [
        {"kind": "PrefixTokens", "count": draw(st.integers(1, 2)), "position": draw(st.booleans())}
        for _ in range(draw(st.integers(0, 2)))
    ]


def stem(draw: Draw, place: Place) -> dict[str, Any]:
    layers = draw(st.integers(1, 2))
    made = {name: [draw(st.sampled_from(values)) for _ in range(layers)] for name, values in STEM.items()}
    return {"kind": "ConvolutionStem", "norm": draw(st.sampled_from(("layer", "group"))), **made}


def convolutions(stride: int, mixes: bool = True) -> Callable[[Draw, Place], Any]:
    """Of which the first alone has a stride, and the last the width of its place; one may hold any op instead."""

    def make(draw: Draw, place: Place) -> list[dict[str, Any]]:
        made = [fields(draw, "Convolution", place) for _ in range(draw(st.integers(1, 2)))]
        if not place.careless:
            made = [{**without(each, "width"), "stride": 1 if i else stride} for i, each in enumerate(made)]
            made = [{**each, "width": 8} for each in made[:-1]] + made[-1:]
        if mixes and draw(st.booleans()):  # an op before the last: as wide as what it reads
            inner = dataclasses.replace(place, width=8 if len(made) > 1 else place.width, reshapes=False)
            made.insert(-1, fields(draw, "OpLayer", inner))
        return made

    return make


STEM = {"widths": (8, 12), "kernels": (4, 3), "strides": (2, 3)}
KEPT = object()  # the default stays: what it changes is not for a random description to say
CHANCE = st.sampled_from((0.0, 0.1))
SMALL = st.sampled_from((8, 24))
TOKEN = st.integers(0, VOCABULARY - 1)

# whose defaults are for larger models
UNFIT = {("Convolutional", "groups"), ("Binary", "bits"), ("SpecAugment", "time_span"), ("SpecAugment", "channel_span"),
         ("ConvolutionEmbedding", "image_size"), ("ConvolutionEmbedding", "channels"), ("XVectorHead", "widths"),
         ("XVectorHead", "kernels"), ("XVectorHead", "dilations"), ("ProductKeyMemory", "top_k"),
         ("ProductKeyMemory", "query_width"), ("AdaptiveTokens", "cutoffs"), ("AdaptiveHead", "cutoffs"),
         ("ConvEmbedding", "widths"), ("KLEmbedding", "widths"), ("KLEmbedding", "groups"), ("LSHAttention", "chunk"),
         ("LSHAttention", "buckets"), ("LSHAttention", "causal"), ("LSHAttention", "own_bucket"),
         ("ChunkAttention", "chunk"), ("ChunkAttention", "causal"),
         ("RecurrentAttention", "segment"), ("RecurrentAttention", "kept"), ("RecurrentAttention", "rate"),
         ("RoutingAttention", "decay"), ("RoutingAttention", "window"), ("RoutingAttention", "causal"),
         ("SinkhornAttention", "block"), ("NonLocal", "norm")}  # fmt: skip

FIELDS: dict[str, Any] = {
    # everywhere, by the name alone
    "vocab_size": lambda draw, place: VOCABULARY + (place.careless and draw(st.booleans())), "num_heads": heads,
    "num_kv_heads": lambda draw, place: draw(st.sampled_from((1, place.heads))),
    "head_width": st.sampled_from((4, 8)), "width": SMALL, "length": st.just(ROOM), "mask": mask, "masks": masks,
    "bias": st.booleans(), "position": attention_position, "dropout": CHANCE, "drop_path": CHANCE,
    "layer_drop": CHANCE, "jitter": CHANCE, "projection_dropout": CHANCE, "input_dropout": CHANCE,
    "first_dropout": CHANCE, "last_dropout": CHANCE, "eps": st.sampled_from((1e-5, 1e-3)),
    "base": st.sampled_from((10000.0, 100.0)), "momentum": KEPT, "op": op, "mixer": op, "part": op, "memory": memory,
    "memory_width": KEPT, "taps": st.sampled_from((1, 3, 4)), "kernel": st.sampled_from((3, 1, 4, 5)),
    "padding_index": st.none(), "unused_table": KEPT, "scale": st.sampled_from((1.0, 0.5)),
    "num_experts": st.integers(2, 4),
    "num_labels": st.integers(2, 4), "ClassifyHead.num_labels": st.integers(1, 4), "separator": KEPT,
    "padding_token": KEPT, "Stack.position": shared_position, "patch_size": grid, "channels": st.just(2),
    "groups": st.sampled_from((1, 2)),
    # of one kind
    "Attention.bias": st.sampled_from(("qkvo", "", "qv", "o")),
    "Projections.bias": st.sampled_from(("qkvo", "", "k")), "CompressedAttention.bias": st.sampled_from(("qkvo", "")),
    "BlockSparseAttention.bias": st.sampled_from(("qkvo", "")), "scores": score_changes,
    "BlockAttention.size": st.integers(2, 6), "BlockAttention.mask": KEPT,
    "LinearAttention.mask": lambda draw, place: {"kind": "Causal" if place.writes else "Full"},
    "LatentAttention.position": lambda draw, place: part(draw, Part.kinds["Rope"], place),
    "LatentAttention.rank": SMALL, "LatentAttention.rotary_width": st.sampled_from((4, 8)),
    "LatentAttention.value_width": st.sampled_from((4, 8)), "LatentAttention.query_rank": SMALL,
    "NystromAttention.length": st.just(LENGTH), "NystromAttention.landmarks": landmarks, "pool": pool,
    "NystromAttention.taps": st.sampled_from((1, 3)), "BlockSparseAttention.random_blocks": st.integers(0, 1),
    # a causal one reads short texts alone, and says so: test_big_bird.py
    "BlockSparseAttention.block_size": lambda draw, place: ROOM if place.writes else draw(st.sampled_from((1, 2, 4))),
    "BlockTextEmbedding.random_blocks": st.integers(0, 1),
    "BlockTextEmbedding.block_size": st.sampled_from((1, 2, 4)), "LinformerAttention.projected": st.integers(2, 6),
    "SoftmaxFeatures.count": st.sampled_from((8, 16)), "DualState.states": SMALL,
    "Switch.capacity": st.sampled_from((64, 2)), "GShard.capacity": st.sampled_from((128, 3)),
    "DualState.head_width": st.sampled_from((4, 8)),
    "DualState.step_high": st.sampled_from((None, 1.0)), "Switch.dtype": KEPT,
    "GShard.top_k": st.just(2), "Router.top_k": st.sampled_from((1, 2)), "PooledBalance.top_k": st.sampled_from((1, 2)),
    "TopK.top_groups": st.sampled_from((1, 2)), "TopK.group_best": st.sampled_from((1, 2)),
    "RelativeSinusoids.width": st.sampled_from((8, 16)), "Disentangled.bias": st.sampled_from(("qk", "q", "")),
    "Disentangled.reach": st.sampled_from((64, 5)), "Disentangled.buckets": st.sampled_from((None, 4, 7)),
    "Disentangled.width": KEPT, "TextEmbedding.ignores_segments": KEPT,
    "DebertaAttention.mask": KEPT, "DebertaAttention.memory": KEPT,
    "Distance.tree": st.sampled_from((False, False, False, True)), "Tokens.width": st.sampled_from((None, 8)),
    "Tokens.scale": st.sampled_from((None, 2.0)), "TextEmbedding.position": absolute, "Vectors.position": absolute,
    "WaveformEmbedding.position": absolute, "SegmentEmbedding.position": absolute,
    "SegmentEmbedding.size": st.integers(2, 6),  # of one sample each there would be more than ROOM
    "TextEmbedding.segments": st.sampled_from((0, 2)), "SubwordBlocks.kernel": st.sampled_from((0, 1, 5)),
    "Numbering.first": KEPT, "WithoutToken.token": st.just(1), "TextEmbedding.order": st.permutations(STEPS),
    "TextEmbedding.unseen": KEPT, "GlobalTextEmbedding.global_tokens": st.sampled_from(("none", "first")),
    "TreeDepth.scheme": absolute, "Concatenated.scheme": absolute,
    "Summed.parts": lambda draw, place: [absolute(draw, place) for _ in range(2)],
    "Sinusoidal.length": st.sampled_from((ROOM, 4)), "Sinusoidal2D.rows": st.just(12),
    "Sinusoidal2D.columns": st.just(8), "Sinusoidal2D.prefix": st.integers(0, 1),
    "Binary.bits": st.sampled_from((7, 8)),
    "BlockSparseAttention.mask": lambda draw, place: mask(draw, place) if place.writes else OMITTED,
    "Learned.offset": st.integers(0, 2), "Convolutional.groups": st.sampled_from((1, 2)),
    "Sinusoidal.offset": st.integers(0, 2), "DynamicScaling.length": st.sampled_from((ROOM, 8)),
    "LongScaling.length": st.sampled_from((ROOM, 8)), "LongScaling.short": st.just((1.5,)),
    "LongScaling.long": st.just((2.5,)), "LongScaling.attention_factor": KEPT,
    "ProportionalScaling.share": st.sampled_from((1.0, 0.5)),
    "Rope.fraction": st.sampled_from((1.0, 0.5)), "Llama3Scaling.low_frequency_factor": st.just(1.0),
    "Llama3Scaling.high_frequency_factor": st.just(4.0), "YarnScaling.beta_fast": KEPT, "YarnScaling.beta_slow": KEPT,
    "BucketedBias.num_buckets": st.sampled_from((8, 32)), "BucketedBias.max_distance": st.sampled_from((32, 128)),
    "InputRope.fraction": slip(st.just(0.5)), "InputRope.scaling": KEPT,
    "ConvolutionModule.kernel": st.sampled_from((3, 1, 4, 5)), "Windows.size": st.sampled_from((2, 3)),
    "Windows.shift": st.integers(0, 1), "GridBias.size": st.just(4), "TimeMix.width": SMALL,
    "ContinuousGridBias.learned": st.sampled_from((0, 3)),
    "Pool.take": st.sampled_from(("first", "mean", "last", "token", "seeds")), "Pool.token": KEPT, "Pool.seeds": KEPT,
    "Seeds.bias": st.sampled_from(("qkvo", "", "o")), "Pool.padding_token": KEPT,
    "Pool.width": KEPT, "Transform.width": KEPT, "CTCHead.blank": st.just(0), "CTCHead.zero_infinity": st.just(True),
    "LMHead.shift": KEPT, "LMHead.unused_bias": KEPT, "QuestionHead.separator": st.just(3),
    "SegmentedSinusoids.mirrored": KEPT, "SegmentedSinusoids.most": KEPT,
    "ClassifyHead.problem": KEPT, "ClassifyHead.shares": KEPT, "PixelHead.stride": st.sampled_from((4, 2)),
    "PixelHead.patch_size": patch,
    "PatchEmbedding.image_size": st.just(list(IMAGE)), "PatchEmbedding.position": patch_positions,
    "PatchEmbedding.prefix": prefix_tokens, "Convolution.kernel": st.sampled_from((1, 3)),
    "Convolutions.layers": convolutions(1), "ConvolutionEmbedding.layers": convolutions(2, mixes=False),
    "ConvolutionEmbedding.image_size": st.just(list(IMAGE)), "ConvolutionEmbedding.pool": st.sampled_from((None, 1, 3)),
    "LayersDown.layers": convolutions(2), "LayersDown.pool": st.sampled_from((None, 1, 3)),
    "LayersDown.width": lambda draw, place: 2 * place.width,
    "ResidualDown.layers": convolutions(2), "ResidualDown.width": lambda draw, place: 2 * place.width,
    "ResidualDown.skip": lambda draw, place: {**fields(draw, "Convolution", place), "width": None, "stride": 2},
    "KLEmbedding.image_size": st.just(list(IMAGE)), "KLEmbedding.groups": st.sampled_from((1, 2)),
    "KLEmbedding.widths": st.sampled_from(([8], [6, 8])), "KLEmbedding.blocks": st.integers(1, 2),
    "ConvEmbedding.image_size": st.just(list(IMAGE)),
    "ConvEmbedding.widths": st.sampled_from(([8], [6, 8])), "ConvEmbedding.kernel": st.sampled_from((3, 1)),
    "WaveformEmbedding.stem": stem, "SpecAugment.time_span": st.integers(1, 2),
    "SpecAugment.channel_span": st.integers(1, 2), "SpecAugment.active": KEPT, "LayerMix.rest": KEPT,
    "TextOnly.rest": KEPT, "Sublayer.normed_skip": lambda draw, place: draw(st.integers(0, 9)) == 9,
    "Stack.layers": lambda d, p: OMITTED, "Stack.pattern": KEPT, "Stack.order": KEPT,
    "Stack.depth": lambda d, p: OMITTED, "Stack.project": st.sampled_from((None, None, None, 8)),
    "ConvolutionAdapter.depth": st.integers(0, 1), "Merge.pre_norm": KEPT,
    "SpectrogramEmbedding.kernel": st.sampled_from((3, 1, 5)), "SpectrogramEmbedding.whole": KEPT,
    "SpectrogramEmbedding.strides": st.sampled_from(([1, 2], [2], [1])), "SpectrogramEmbedding.position": absolute,
    "SubsampledSpectrogram.kernel": st.sampled_from((3, 1, 5)), "SubsampledSpectrogram.stride": st.integers(1, 2),
    "SubsampledSpectrogram.depth": st.integers(1, 3),
    "XVectorHead.widths": st.just([8, 10]), "XVectorHead.kernels": st.sampled_from(([2, 1], [1, 2])),
    "XVectorHead.dilations": st.just([1, 1]), "XVectorHead.margin": KEPT,
    "ContrastHead.features": lambda draw, place: place.features + (place.careless and draw(st.booleans())),
    "ContrastHead.negatives": st.integers(1, 4), "ContrastHead.temperature": KEPT, "ContrastHead.diversity": KEPT,
    "Quantizer.codes": st.integers(2, 6), "Quantizer.temperature": KEPT,
    "Normal.std": st.sampled_from((0.1, 0.02)), "Normal.mean": KEPT, "Uniform.low": st.just(-0.1),
    "Uniform.high": st.just(0.1), "Value.value": st.sampled_from((0.0, 0.1)),
    "Kaiming.gain": st.sampled_from((1.0, 0.5)),
    "TrajectoryEmbedding.tokens": KEPT,  # a table that nothing reads
    "Synthesizer.bias": st.sampled_from(("qkvo", "", "qv")), "ProductKeyMemory.keys": st.integers(4, 6),
    "ProductKeyMemory.query_width": st.sampled_from((4, 8)),
    "Convolving.causal": causal,
    "PoolingAttention.bias": st.sampled_from(("qkvo", "", "qv")),
    "TokenLearner.mixer": lambda draw, place: without(
        fields(draw, "Attention", dataclasses.replace(place, memory=False)), "position"),
    # of few random features sums of weights may be near zero, and what is divided by them as large as it likes
    "RandomFeatures.count": st.just(256),
    "LinearAttention.gate": lambda draw, place: place.writes and draw(st.booleans()),
    "LSHAttention.chunk": st.sampled_from((2, 4, 16)), "LSHAttention.buckets": st.sampled_from(([4], [2, 2])),
    "LSHAttention.causal": causal, "LSHAttention.own_bucket": causal, "LSHAttention.bias": st.booleans(),
    "LSHAttention.after": lambda draw, place: 0 if place.writes else draw(st.integers(0, 1)),
    "LSHAttention.longest": KEPT, "LSHAttention.rotations": st.sampled_from(("saved", 3)),
    "loose": KEPT, "multiple": KEPT,  # as published, in tests/families/test_reformer.py
    "ChunkAttention.chunk": st.sampled_from((2, 4, 16)), "ChunkAttention.causal": causal,
    "ChunkAttention.ring": lambda draw, place: not place.writes and draw(st.booleans()),
    "Stack.shows": st.sampled_from(("inputs", "outputs", "stream")),
    "RoutingAttention.clusters": st.sampled_from((2, 4)), "RoutingAttention.window": st.sampled_from((2, 3, 16)),
    # every pass of training moves the centres, and lines compare several: tests/parts/attention/test_routing.py
    "RoutingAttention.decay": st.just(1.0), "RoutingAttention.causal": causal,
    "SinkhornAttention.block": st.sampled_from((3, 4, 16)),
    "RecurrentAttention.segment": st.sampled_from((2, 4)), "RecurrentAttention.kept": st.sampled_from((0, 2)),
    "RecurrentAttention.compressed": st.sampled_from((0, 2)), "RecurrentAttention.rate": st.sampled_from((1, 2)),
    "RecurrentAttention.position": lambda draw, place: fields(draw, "RelativeSinusoids", place),
    "cutoffs": st.just([10, 25]), "widths": st.sampled_from(([8, 4, 2], [4, 4, 16])), "AdaptiveTokens.width": KEPT,
    "AdaptiveHead.bias": KEPT, "AdaptiveHead.offset": KEPT,
    "MixtureHead.offset": KEPT, "LayerMix.count": KEPT,
    "Perceiver.stack": lambda draw, place: OMITTED, "Perceiver.width": KEPT, "Write.position": writing,
    "Look.bias": st.sampled_from(("qkvo", "", "v")), "Write.count": st.just(ROOM),
    "value_width": st.sampled_from((4, 8)), "Perceiver.rounds": st.integers(1, 2),
    "BranchedConvolution.out": lambda draw, place: fields(draw, "Convolved", place),
    # one that texts do not have, so that the first op is for what stands before the other
    "LanguageSpecific.tokens": st.sampled_from(([VOCABULARY, 3], [3])),
} | grids.FIELDS  # fmt: skip

# -- blocks, stacks, models -------------------------------------------------------------------------------------------


def sublayer(draw: Draw, place: Place, **given: Any) -> dict[str, Any]:
    made = fields(draw, "Sublayer", place) | given
    if not place.careless and not refused(made["op"]) and getattr(decode(made["op"]), "reshapes", False):
        made["skip"] = grids.skip(draw)
    return made if place.careless or made.get("pre_norm") else without(made, "normed_skip")


def without(made: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in made.items() if name not in names}


def block(draw: Draw, place: Place, cross: bool = False) -> dict[str, Any]:
    """One to three steps, at times two of them side by side."""
    steps = {name: sublayer(draw, place) for name in ("first", "second", "third")[: draw(st.integers(1, 3))]}
    if cross:
        looks = without(fields(draw, "Attention", place), "mask", "position")
        steps["cross"] = sublayer(draw, place, op=looks | {"memory": True})
    shaped = any(step.get("skip") for step in steps.values()) and not place.careless
    if len(steps) > 1 and draw(st.integers(0, 3)) == 3 and not shaped:
        side = {name: steps.pop(name) for name in list(steps)[-2:]}
        if not place.careless:
            side = {name: without(step, "out_norm", "normed_skip") for name, step in side.items()}
        steps["side"] = {"kind": "Parallel", **side}
    return {"kind": "Block", **steps}


def reversible(made: dict[str, Any]) -> dict[str, Any]:
    """The same block on two streams, where its steps can be undone."""
    steps = {name: without(step, "out_norm", "normed_skip") if isinstance(step, dict) else step
             for name, step in made.items()}  # fmt: skip
    made = steps | {"kind": "Reversible"}
    return steps if refused(made) else made


def stack(draw: Draw, place: Place) -> dict[str, Any]:
    cross = place.memory and (not place.careless or draw(st.booleans()))
    made = fields(draw, "Stack", place) | {"depth": draw(st.integers(1, 3))}
    if draw(st.integers(0, 2)) == 2:
        made["layers"] = {name: block(draw, place, cross) for name in "ab"}
        made["pattern"] = draw(st.sampled_from((["a", "b"], ["b", "a", "a"])))
    else:
        made["layers"] = block(draw, place, cross)
    if draw(st.integers(0, 9)) == 9:
        made["order"] = [*range(made["depth"]), 0]
    if (place.reshapes or place.writes) and draw(st.integers(0, 5)) == 5:  # others follow inner stacks
        kinds = made["layers"] if made.get("pattern") else {"": made["layers"]}
        twice = {name: reversible(each) for name, each in kinds.items()}
        if all(each["kind"] == "Reversible" for each in twice.values()):
            made["layers"] = twice if made.get("pattern") else twice[""]
    return made if place.careless or not refused(made) else without(made, "position", "order", "layer_drop", "neck")


def refused(made: dict[str, Any]) -> bool:
    try:
        decode(made)
    except ValueError:
        return True
    return False


def encoder(draw: Draw, place: Place) -> dict[str, Any]:
    """A stack, or several: on coarser grids of an image, on shorter texts."""
    several = "Funnel" if place.source != "pixel_values" else "Stack" if "a video" in place.gives else "Stages"
    kind = draw(st.sampled_from(("Stack", "Stack", "Stack", several, "Perceiver")))
    if kind == "Perceiver":
        return perceiver(draw, place)
    if kind == "Stack":
        return stack(draw, dataclasses.replace(place, reshapes=True))
    if kind == "Stages":
        return {"kind": "Stages", "stages": [stack(draw, place), stack(draw, dataclasses.replace(
            place, width=2 * place.width))], "down": [part(draw, Part.kinds["Down"], place)]}  # fmt: skip
    place = dataclasses.replace(place, shortened=True)
    made = {"kind": "Funnel", "stages": [stack(draw, place) for _ in range(draw(st.integers(1, 2)))]}
    return made | {"pool": fields(draw, "Halve", place)} | ({"top": stack(draw, place)} if draw(st.booleans()) else {})


def perceiver(draw: Draw, place: Place) -> dict[str, Any]:
    """Latents know nothing of what was read but what they saw."""
    width = draw(st.sampled_from((None, 2 * place.width)))
    inner = dataclasses.replace(place, width=width or place.width, shortened=True, gives=())
    made = fields(draw, "Perceiver", inner) | {"width": width, "stack": without(stack(draw, inner), "neck", "project")}
    if made.get("rounds", 1) > 1:
        made["stack"] = without(made["stack"], "norm")
    made |= {"reread": made.get("rounds", 1) > 1 and made.get("reread", False)}
    if not place.careless and draw(st.integers(0, 3)):
        made["write"] = without(fields(draw, "Write", place), "count", "width")
    return made


def embedding(draw: Draw, place: Place, source: str | None) -> dict[str, Any]:
    """Any of those that read one thing: text, vectors, pixels, sound or episodes."""
    source = source or draw(st.sampled_from(SOURCES))
    names = [name for name in kinds(Embedding) if source_of(name) == source and name not in NEVER_DRAWN]
    made = fields(draw, choose(draw, names), place)
    return grids.patches(draw, made) if source == "pixel_values" else made


def source_of(name: str) -> str:
    return Part.kinds[name].inputs[0]  # type: ignore[attr-defined]


def reading(place: Place, embedding: dict[str, Any]) -> Place:
    source = source_of(embedding["kind"])
    place = dataclasses.replace(place, patch=embedding.get("patch_size"))
    try:
        made = decode(embedding)
        return dataclasses.replace(place, source=source, gives=made.gives, features=getattr(made, "features", 8))
    except ValueError:  # it is refused, and with it the model
        return dataclasses.replace(place, source=source)


def head(draw: Draw, place: Place) -> dict[str, Any]:
    """Any, and often one that few embeddings serve."""
    names = [name for name in fitting(kinds(Head), place) if name not in NEVER_DRAWN]
    choosy = [name for name in names if needs(name)]
    return fields(draw, choose(draw, choosy if choosy and draw(st.booleans()) else names), place)


def init(draw: Draw, place: Place) -> dict[str, Any]:
    """How weights start: at times one kind of matrix otherwise than the rest."""
    made = {"*": {"kind": "Normal", "std": 0.1}}
    if draw(st.integers(0, 4)) < 4:
        return made
    names = [name for name in kinds(Initializer) if name not in NEVER_DRAWN]
    pattern = draw(st.sampled_from(("*.o.weight", "*.up.weight", "*.tokens.weight", "head.out.weight")))
    return {pattern: fields(draw, choose(draw, names), place), **made}


def _model(draw: Draw, source: str | None = None) -> dict[str, Any]:
    shapes = ("DecoderModel", "EncoderModel", "EncoderDecoderModel")
    shape = "EncoderModel" if source is not None else draw(st.sampled_from(shapes))
    heads = draw(st.sampled_from((2, 1, 4)))
    place = Place(width=heads * draw(st.sampled_from((8, 12, 16)) if heads < 4 else st.sampled_from((4, 8, 12))),
                  heads=heads, careless=draw(st.sampled_from(range(10))) == 5)  # fmt: skip
    made: dict[str, Any] = {"kind": shape, "width": place.width, "init": init(draw, place)}
    if shape != "EncoderModel" and draw(st.integers(0, 9)):
        source = "input_ids"
    made["embedding"] = embedding(draw, place, source)
    place = reading(place, made["embedding"])
    if shape != "DecoderModel":
        made["encoder"] = (encoder if shape == "EncoderModel" else stack)(draw, place)
    if shape != "EncoderModel":
        memory = shape == "EncoderDecoderModel" or draw(st.integers(0, 9)) == 9
        place = dataclasses.replace(place, writes=True, memory=memory)
        if shape == "EncoderDecoderModel":
            made["decoder_embedding"] = embedding(draw, place, "input_ids")
            place = reading(place, made["decoder_embedding"])
        made["decoder"] = stack(draw, place)
    if shape != "EncoderModel" and draw(st.integers(0, 3)):
        made["head"] = fields(draw, "LMHead", place)
    elif draw(st.integers(0, 5)):
        made["head"] = head(draw, place)
    if made.get("head", {}).get("kind") == "LMHead" and place.source == "input_ids" and draw(st.booleans()):
        reads = "decoder_embedding" if shape == "EncoderDecoderModel" else "embedding"
        tokens = made[reads]["tokens"]
        if place.careless or (tokens["kind"] == "Tokens" and tokens.get("width") is None):
            made["ties"] = [["head.out.weight", f"{reads}.tokens.weight"]]
    return made


OPS = kinds(Op)
SOURCES = sorted(set(map(source_of, kinds(Embedding))))

OWN = "how a Part starts weights of its own: it comes with each one that is drawn"
AGAIN = "of an autoencoder, a shape of its own without layers: tests/models/test_autoencoder.py"
BOTH = "models, each of which is drawn by itself, and their cosine: the catalogue's suite has them, or their families'"
SIDES = "widths that add up to that of the one place where it stands: tests/parts/position/test_absolute.py"
ORDER = "a stack and the one embedding that it needs, for inputs of their own: test_two_streams.py, the catalogue"
SPANS = "gives places, and as many of them as a text must have: test_xlnet.py, and the catalogue's suite"
FED = "a decoder and towers, each of which is drawn by itself, and a place for the one in the other: as above"
NEVER_DRAWN = {
    **{name: OWN for name in kinds(Initializer) if Part.kinds[name].__module__ != Initializer.__module__},
    "AxialLearned": SIDES,
    "TransparentAttention": "reads a memory as wide as all layers together: test_weighted_transformer.py",
    **dict.fromkeys(("TwoTowerModel", "SimilarityHead", "ThreeTowerModel", "SpacesHead"), BOTH),
    **dict.fromkeys(
        (
            "AutoencoderModel",
            "ConvDecoder",
            "KLDecoder",
            "GumbelCodes",
            "RoundedCodes",
            "GaussianLatent",
        ),
        AGAIN,
    ),
    **dict.fromkeys(("TwoStreams", "OrderedText"), ORDER),
    "LikelySpans": SPANS,
    **dict.fromkeys(("TowerDecoderModel", "Tower", "TowerEncoderModel", "HiddenSpansModel", "HiddenSpansHead"), FED),
}
