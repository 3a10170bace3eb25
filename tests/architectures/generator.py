"""Random descriptions, drawn from the fields of Parts: each slot gets any Part that its type allows, and numbers are
small. A new Part is drawn without a change here, unless the name and type of a field do not determine its valid values;
then FIELDS needs one line.

The result is JSON, as a user would write it, so that a refused description can be printed too.
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
from anyformer.parts.mask import Mask
from anyformer.parts.op import Op
from anyformer.specs.codec import decode
from anyformer.specs.part import Part, default_values, hints
from anyformer.specs.slots import kinds as every_kind
from architectures import grids

every_kind()

# modules with Parts of models; other modules have Parts of training runs, and other tests declare Parts
PARTS = ("anyformer.parts.", "anyformer.stacks.", "anyformer.models")
VOCABULARY, LENGTH, ROOM = 40, 12, 96  # tokens in the vocabulary, in a text, and in the longest padded text
SAMPLES, IMAGE = 120, (8, 12)


@dataclasses.dataclass(frozen=True)
class Slot:
    """The surroundings of a field that is drawn."""

    width: int = 16
    heads: int = 2
    writes: bool = False  # the stack is causal
    source: str = "input_ids"  # the model's first input
    shortened: bool = False  # a text may have fewer vectors here than tokens
    memory: bool = False  # the stack can attend to a memory
    patch: list[int] | None = None  # patch size of an image
    features: int = 8  # channels of audio before the projection
    gives: tuple[str, ...] = ()  # `gives` of the embedding, which other Parts may require
    nested: int = 0  # number of ops or positions around it
    reshapes: bool = False  # the op may change the width and the grid
    masks: int = 0  # number of masks around it
    careless: bool = False  # values that do not fit are drawn too: they must be refused


Draw = Callable[[Any], Any]
OMITTED = object()


def description(source: str | None = None) -> st.SearchStrategy[dict[str, Any]]:
    """Any model, or an EncoderModel whose first input is `source`."""
    return st.composite(_model)(source)


def concrete(kind: type) -> bool:
    """Whether descriptions can contain this Part: it has no subclasses, or it has its own `build`."""
    ours = (other for other in Part.kinds.values() if other.__module__.startswith(PARTS))
    return not any(kind in other.__bases__ for other in ours) or kind in CONCRETE_BASES


def kinds(base: type) -> list[str]:
    """Return the names of all Parts that a slot of this type accepts, sorted by module. (Part.kinds is in the order of
    imports, which depends on the other tests of the run.)"""
    ours = {name: kind for name, kind in Part.kinds.items() if kind.__module__.startswith(PARTS)}
    found = [name for name, kind in ours.items() if issubclass(kind, base) and concrete(kind)]
    return sorted(found, key=lambda name: ours[name].__module__)


# base classes that are also Parts of models; a base that only types a slot has no `build`
CONCRETE_BASES = {kind for kind in Part.kinds.values() if "build" in vars(kind)}


def _mentioned(hint: Any) -> Iterator[type]:
    """The Parts that a type names."""
    if isinstance(hint, type) and issubclass(hint, Part):
        yield hint
    for inner in typing.get_args(hint):
        yield from _mentioned(inner)


# -- one Part ---------------------------------------------------------------------------------------------------------


def choose(draw: Draw, names: list[str]) -> str:
    """All Parts are chosen here, so that a test can see the candidates."""
    return draw(st.sampled_from(names))


def part(draw: Draw, base: type, slot: Slot) -> dict[str, Any]:
    """Any kind of `base`, as JSON."""
    return fields(draw, choose(draw, fitting(kinds(base), slot)), slot)


def fitting(names: list[str], slot: Slot) -> list[str]:
    """The Parts that fit; all of them if none fits."""
    return [name for name in names if fits(name, slot)] or names


def fits(name: str, slot: Slot) -> bool:
    found = set(needs(name)) <= set(slot.gives) and not (slot.writes and looks_ahead(Part.kinds[name]))
    found = found and (name not in grids.ON_GRIDS or bool({"an image", "a video"} & set(slot.gives)))
    return found or slot.careless


def possible(hint: Any, slot: Slot) -> bool:
    """Whether any value of this type fits."""
    bases = list(_mentioned(hint))
    return not bases or any(fits(name, slot) for base in bases for name in kinds(base))


def looks_ahead(kind: type[Part]) -> bool:
    """Whether it sees later tokens, regardless of its fields."""
    return kind.declared_sees == "all" and kind.reaches is Part.reaches


def needs(name: str) -> tuple[str, ...]:
    found = getattr(Part.kinds[name], "requires", ())
    return found if isinstance(found, tuple) else ()


def fields(draw: Draw, name: str, slot: Slot) -> dict[str, Any]:
    """A Part with random fields. If the Part refuses them, they are drawn again, a few times."""
    for _ in range(5):
        made = fields_once(draw, name, slot)
        if slot.careless or name in ("Sublayer", "Stack") or not refused(made):
            break
    return made


def fields_once(draw: Draw, name: str, slot: Slot) -> dict[str, Any]:
    """About half of the fields that have a default keep it."""
    kind = Part.kinds[name]
    made: dict[str, Any] = {"kind": name}
    defaults = default_values(kind)
    for field, hint in hints(kind).items():
        own = rule(kind, field)
        must_be_set = (not slot.careless and (kind.__name__, field) in UNFIT) or (field == "mask" and slot.writes)
        if field in defaults and (own is KEPT or not (must_be_set or draw(st.booleans()))):
            continue
        value = own(draw, slot) if callable(own) else draw(own) if own is not None else value_of(draw, hint, slot)
        if value is not OMITTED:
            made[field] = value
    return made


def rule(kind: type, field: str) -> Any:
    """The entry of FIELDS for a field: for this Part or one of its bases, otherwise for the field's name."""
    for base in kind.__mro__:
        if (found := FIELDS.get(f"{base.__name__}.{field}")) is not None:
            return found
    return FIELDS.get(field)


def value_of(draw: Draw, hint: Any, slot: Slot) -> Any:
    """Any small value of a type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        args = tuple(arg for arg in args if possible(arg, slot)) or args
        return value_of(draw, draw(st.sampled_from(sorted(args, key=lambda a: a is not type(None)))), slot)
    if origin is Literal:
        return draw(st.sampled_from(args))
    if origin is tuple and args[1:] == (...,):
        return [value_of(draw, args[0], slot) for _ in range(draw(st.integers(1, 2)))]
    if hint in SIMPLE:
        return draw(SIMPLE[hint])
    assert isinstance(hint, type) and issubclass(hint, Part), f"no rule for a field of type {hint}"
    return part(draw, hint, slot)


SIMPLE: dict[Any, Any] = {
    type(None): st.none(), bool: st.booleans(), int: st.integers(1, 4), float: st.sampled_from((1.0, 0.5, 2.0)),
}  # fmt: skip

# -- fields whose type does not determine the valid values ------------------------------------------------------------


def mask(draw: Draw, slot: Slot) -> dict[str, Any]:
    """A mask with at most two levels of nesting. In a causal stack it begins with Causal."""
    inner, causal = dataclasses.replace(slot, masks=slot.masks + 1), {"kind": "Causal"}
    if slot.writes and not slot.careless and not slot.masks:
        return {"kind": "All", "masks": [causal, mask(draw, inner)]} if draw(st.booleans()) else causal
    names = [name for name in kinds(Mask) if slot.masks < 2 or not _mentions(name, Mask)]
    return fields(draw, choose(draw, names), inner)


def _mentions(name: str, base: type) -> bool:
    return any(issubclass(kind, base) for hint in hints(Part.kinds[name]).values() for kind in _mentioned(hint))


def masks(draw: Draw, slot: Slot) -> list[dict[str, Any]]:
    return [mask(draw, slot) for _ in range(draw(st.integers(1, 2)))]


def absolute(draw: Draw, slot: Slot) -> dict[str, Any]:
    """A position of the embedding; positions inside others are not nested further."""
    base = Part.kinds["AbsolutePosition"]
    names = [name for name in fitting(kinds(base), slot) if not slot.nested or not _mentions(name, base)]
    names = [name for name in names if name not in NEVER_DRAWN]
    return fields(draw, choose(draw, names), dataclasses.replace(slot, nested=slot.nested + 1))


def op(draw: Draw, slot: Slot) -> dict[str, Any]:
    """Any mixer or feed-forward."""
    names = [
        name for name in fitting(OPS, slot) if not slot.nested or name not in ("Windows", "Unused", "LanguageSpecific")
    ]
    inner = dataclasses.replace(slot, nested=slot.nested + 1)
    for _ in range(5):
        made = fields(draw, choose(draw, names), inner)
        if not slot.writes or slot.careless or refused(made) or decode(made).sees in ("itself", "past"):
            break
    return made


def attention_position(draw: Draw, slot: Slot) -> dict[str, Any]:
    return part(draw, Part.kinds["AttentionPosition"], slot)


def shared_position(draw: Draw, slot: Slot) -> dict[str, Any] | None:
    if draw(st.integers(0, 3)):
        return None
    if slot.careless:
        return attention_position(draw, slot)
    return fields(draw, draw(st.sampled_from(("BucketedBias", "DistanceBias", "Alibi"))), slot)


def slip(values: Any) -> Callable[[Draw, Slot], Any]:
    """A field that is set only in careless descriptions."""
    return lambda draw, slot: draw(values) if slot.careless else OMITTED


def landmarks(draw: Draw, slot: Slot) -> int:
    """The number of landmarks; LENGTH if the number of vectors is not known."""
    whole = slot.shortened or slot.source not in ("input_ids", "inputs_embeds")
    return LENGTH if whole else draw(st.sampled_from((LENGTH, 4, 6)))


def writing(draw: Draw, slot: Slot) -> dict[str, Any]:
    """A position for the outputs of a Perceiver."""
    return fields(draw, choose(draw, ["Learned", "Sinusoidal"]), slot)


def pool(draw: Draw, slot: Slot) -> dict[str, Any]:
    ids = ["LastToken", "LastOccurrence"] if "token ids" in slot.gives or slot.careless else []
    take = fields(draw, draw(st.sampled_from(["FirstToken", "MeanTokens", "SeedPool", "AttentionPool", *ids])), slot)
    take |= {"padding_token": 1} if take["kind"] == "LastToken" else {}
    return fields(draw, "Pool", slot) | {"take": take} | ({"dense": True} if take["kind"] == "SeedPool" else {})


def memory(draw: Draw, slot: Slot) -> bool:
    return slot.memory and draw(st.booleans())


def causal(draw: Draw, slot: Slot) -> bool:
    return slot.writes or draw(st.booleans())


def score_changes(draw: Draw, slot: Slot) -> list[dict[str, Any]]:
    names = draw(st.lists(st.sampled_from(("SoftCap", "LearnedScale", "TalkingHeads")), max_size=2, unique=True))
    return [{"kind": name, **({"bound": 5.0} if name == "SoftCap" else {})} for name in names]


def heads(draw: Draw, slot: Slot) -> int:
    return draw(st.sampled_from((slot.heads, 3))) if slot.careless else slot.heads


def grid(draw: Draw, slot: Slot) -> list[int]:
    return draw(st.sampled_from(([4, 4], [2, 4])))


def patch(draw: Draw, slot: Slot) -> list[int]:
    """The patch size of the embedding."""
    return grid(draw, slot) if slot.careless or slot.patch is None else slot.patch


def patch_positions(draw: Draw, slot: Slot) -> dict[str, Any] | None:
    made = {"kind": "Learned", "length": draw(st.sampled_from((6, 12))), "offset": draw(st.sampled_from((0, 1)))}
    return None if draw(st.booleans()) else made


def prefix_tokens(draw: Draw, slot: Slot) -> list[dict[str, Any]]:
    """At most two groups of tokens; those without a position are registers."""
    return [
        {"kind": "PrefixTokens", "count": draw(st.integers(1, 2)), "position": draw(st.booleans())}
        for _ in range(draw(st.integers(0, 2)))
    ]


def stem(draw: Draw, slot: Slot) -> dict[str, Any]:
    layers = draw(st.integers(1, 2))
    made = {name: [draw(st.sampled_from(values)) for _ in range(layers)] for name, values in STEM.items()}
    return {"kind": "ConvolutionStem", "norm": draw(st.sampled_from(("layer", "group"))), **made}


def convolutions(stride: int, mixes: bool = True) -> Callable[[Draw, Slot], Any]:
    """Layers: only the first has a stride, and the last has the default width. One layer may be an op instead."""

    def make(draw: Draw, slot: Slot) -> list[dict[str, Any]]:
        made = [fields(draw, "Convolution", slot) for _ in range(draw(st.integers(1, 2)))]
        if not slot.careless:
            made = [{**without(each, "width"), "stride": 1 if i else stride} for i, each in enumerate(made)]
            made = [{**each, "width": 8} for each in made[:-1]] + made[-1:]
        if mixes and draw(st.booleans()):  # an op before the last layer, as wide as its input
            inner = dataclasses.replace(slot, width=8 if len(made) > 1 else slot.width, reshapes=False)
            made.insert(-1, fields(draw, "OpLayer", inner))
        return made

    return make


STEM = {"widths": (8, 12), "kernels": (4, 3), "strides": (2, 3)}
KEPT = object()  # keep the default: random values of this field make no sense
CHANCE = st.sampled_from((0.0, 0.1))
SMALL = st.sampled_from((8, 24))
TOKEN = st.integers(0, VOCABULARY - 1)

# fields whose defaults are too large for these models
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
    # in all Parts, by the field's name
    "vocab_size": lambda draw, slot: VOCABULARY + (slot.careless and draw(st.booleans())), "num_heads": heads,
    "num_kv_heads": lambda draw, slot: draw(st.sampled_from((1, slot.heads))),
    "head_width": st.sampled_from((4, 8)), "width": SMALL, "length": st.just(ROOM), "mask": mask, "masks": masks,
    "bias": st.booleans(), "position": attention_position, "dropout": CHANCE, "drop_path": CHANCE,
    "layer_drop": CHANCE, "jitter": CHANCE, "projection_dropout": CHANCE, "input_dropout": CHANCE,
    "first_dropout": CHANCE, "last_dropout": CHANCE, "eps": st.sampled_from((1e-5, 1e-3)),
    "base": st.sampled_from((10000.0, 100.0)), "momentum": KEPT, "op": op, "mixer": op, "part": op, "memory": memory,
    "memory_width": KEPT, "taps": st.sampled_from((1, 3, 4)), "kernel": st.sampled_from((3, 1, 4, 5)),
    "padding_index": st.none(), "scale": st.sampled_from((1.0, 0.5)),
    "num_experts": st.integers(2, 4),
    "num_labels": st.integers(2, 4), "ClassifyHead.num_labels": st.integers(1, 4), "separator": KEPT,
    "padding_token": KEPT, "Stack.position": shared_position, "patch_size": grid, "channels": st.just(2),
    "groups": st.sampled_from((1, 2)),
    # in one Part and its subclasses
    "Attention.bias": st.sampled_from(("qkvo", "", "qv", "o")),
    "Projections.bias": st.sampled_from(("qkvo", "", "k")), "CompressedAttention.bias": st.sampled_from(("qkvo", "")),
    "BlockSparseAttention.bias": st.sampled_from(("qkvo", "")), "scores": score_changes,
    "BlockAttention.size": st.integers(2, 6), "BlockAttention.mask": KEPT,
    "LinearAttention.mask": lambda draw, slot: {"kind": "Causal" if slot.writes else "Full"},
    "LatentAttention.position": lambda draw, slot: part(draw, Part.kinds["Rope"], slot),
    "LatentAttention.rank": SMALL, "LatentAttention.rotary_width": st.sampled_from((4, 8)),
    "LatentAttention.value_width": st.sampled_from((4, 8)), "LatentAttention.query_rank": SMALL,
    "NystromAttention.length": st.just(LENGTH), "NystromAttention.landmarks": landmarks, "pool": pool,
    "NystromAttention.taps": st.sampled_from((1, 3)), "BlockSparseAttention.random_blocks": st.integers(0, 1),
    # if causal, it reads only short texts and refuses others: test_big_bird.py
    "BlockSparseAttention.block_size": lambda draw, slot: ROOM if slot.writes else draw(st.sampled_from((1, 2, 4))),
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
    "Disentangled.width": KEPT,
    "DebertaAttention.mask": KEPT, "DebertaAttention.memory": KEPT,
    "Distance.tree": st.sampled_from((False, False, False, True)), "Tokens.width": st.sampled_from((None, 8)),
    "Tokens.scale": st.sampled_from((None, 2.0)), "TextEmbedding.position": absolute, "Vectors.position": absolute,
    "WaveformEmbedding.position": absolute, "SegmentEmbedding.position": absolute,
    "SegmentEmbedding.size": st.integers(2, 6),  # with one sample per segment, there would be more than ROOM segments
    "TextEmbedding.segments": st.sampled_from((0, 2, {"kind": "TokenSegments"}, {"kind": "IgnoredSegments"})),
    "SubwordBlocks.kernel": st.sampled_from((0, 1, 5)),
    "Numbering.first": KEPT, "WithoutToken.token": st.just(1), "TextEmbedding.order": st.permutations(STEPS),
    "HiddenTokenText.hidden_token": KEPT, "GlobalTextEmbedding.global_tokens": st.sampled_from(("none", "first")),
    "TreeDepth.scheme": absolute, "Concatenated.scheme": absolute,
    "Summed.parts": lambda draw, slot: [absolute(draw, slot) for _ in range(2)],
    "Sinusoidal.length": st.sampled_from((ROOM, 4)), "Sinusoidal2D.rows": st.just(12),
    "Sinusoidal2D.columns": st.just(8), "Sinusoidal2D.prefix": st.integers(0, 1),
    "Binary.bits": st.sampled_from((7, 8)),
    "BlockSparseAttention.mask": lambda draw, slot: mask(draw, slot) if slot.writes else OMITTED,
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
    "Pool.take": KEPT, "LastToken.padding_token": KEPT, "LastOccurrence.token": st.just(3),
    "Seeds.bias": st.sampled_from(("qkvo", "", "o")), "AttentionPool.bias": st.sampled_from(("qkvo", "", "o")),
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
    "LayersDown.width": lambda draw, slot: 2 * slot.width,
    "ResidualDown.layers": convolutions(2), "ResidualDown.width": lambda draw, slot: 2 * slot.width,
    "ResidualDown.skip": lambda draw, slot: {**fields(draw, "Convolution", slot), "width": None, "stride": 2},
    "KLEmbedding.image_size": st.just(list(IMAGE)), "KLEmbedding.groups": st.sampled_from((1, 2)),
    "KLEmbedding.widths": st.sampled_from(([8], [6, 8])), "KLEmbedding.blocks": st.integers(1, 2),
    "ConvEmbedding.image_size": st.just(list(IMAGE)),
    "ConvEmbedding.widths": st.sampled_from(([8], [6, 8])), "ConvEmbedding.kernel": st.sampled_from((3, 1)),
    "WaveformEmbedding.stem": stem, "SpecAugment.time_span": st.integers(1, 2),
    "SpecAugment.channel_span": st.integers(1, 2), "SpecAugment.active": KEPT, "LayerMix.rest": KEPT,
    "TextOnly.rest": KEPT, "OutputProjection.width": st.sampled_from((8, 12)),
    "Stack.layers": lambda d, p: OMITTED, "Stack.pattern": KEPT, "Stack.order": KEPT,
    "Stack.depth": lambda d, p: OMITTED,
    "ConvolutionAdapter.depth": st.integers(0, 1), "Merge.pre_norm": KEPT,
    "SpectrogramEmbedding.kernel": st.sampled_from((3, 1, 5)), "SpectrogramEmbedding.whole": KEPT,
    "SpectrogramEmbedding.strides": st.sampled_from(([1, 2], [2], [1])), "SpectrogramEmbedding.position": absolute,
    "SubsampledSpectrogram.kernel": st.sampled_from((3, 1, 5)), "SubsampledSpectrogram.stride": st.integers(1, 2),
    "SubsampledSpectrogram.depth": st.integers(1, 3),
    "XVectorHead.widths": st.just([8, 10]), "XVectorHead.kernels": st.sampled_from(([2, 1], [1, 2])),
    "XVectorHead.dilations": st.just([1, 1]), "XVectorHead.margin": KEPT,
    "ContrastHead.features": lambda draw, slot: slot.features + (slot.careless and draw(st.booleans())),
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
    "TokenLearner.mixer": lambda draw, slot: without(
        fields(draw, "Attention", dataclasses.replace(slot, memory=False)), "position"),
    # with few random features, sums of weights may be near zero, and quotients arbitrarily large
    "RandomFeatures.count": st.just(256),
    "LinearAttention.gate": lambda draw, slot: slot.writes and draw(st.booleans()),
    "LSHAttention.chunk": st.sampled_from((2, 4, 16)), "LSHAttention.buckets": st.sampled_from(([4], [2, 2])),
    "LSHAttention.causal": causal, "LSHAttention.own_bucket": causal, "LSHAttention.bias": st.booleans(),
    "LSHAttention.after": lambda draw, slot: 0 if slot.writes else draw(st.integers(0, 1)),
    "LSHAttention.longest": KEPT, "LSHAttention.rotations": st.sampled_from(("saved", 3)),
    "loose": KEPT, "multiple": KEPT,  # as published, in tests/families/test_reformer.py
    "ChunkAttention.chunk": st.sampled_from((2, 4, 16)), "ChunkAttention.causal": causal,
    "ChunkAttention.ring": lambda draw, slot: not slot.writes and draw(st.booleans()),
    "Stack.shows": st.sampled_from(("inputs", "outputs", "stream")),
    "RoutingAttention.clusters": st.sampled_from((2, 4)), "RoutingAttention.window": st.sampled_from((2, 3, 16)),
    # training passes move the centres, but some checks compare several passes: tests/parts/attention/test_routing.py
    "RoutingAttention.decay": st.just(1.0), "RoutingAttention.causal": causal,
    "SinkhornAttention.block": st.sampled_from((3, 4, 16)),
    "RecurrentAttention.segment": st.sampled_from((2, 4)), "RecurrentAttention.kept": st.sampled_from((0, 2)),
    "RecurrentAttention.compressed": st.sampled_from((0, 2)), "RecurrentAttention.rate": st.sampled_from((1, 2)),
    "RecurrentAttention.position": lambda draw, slot: fields(draw, "RelativeSinusoids", slot),
    "cutoffs": st.just([10, 25]), "widths": st.sampled_from(([8, 4, 2], [4, 4, 16])), "AdaptiveTokens.width": KEPT,
    "AdaptiveHead.bias": KEPT, "ScaledTokens.scale": KEPT, "LayerMix.count": KEPT,
    "Perceiver.stack": lambda draw, slot: OMITTED, "Perceiver.width": KEPT, "Write.position": writing,
    "Look.bias": st.sampled_from(("qkvo", "", "v")), "Write.count": st.just(ROOM),
    "value_width": st.sampled_from((4, 8)), "Perceiver.rounds": st.integers(1, 2),
    "BranchedConvolution.out": lambda draw, slot: fields(draw, "Convolved", slot),
    # no text contains the first token, so its op handles the tokens before the second
    "LanguageSpecific.tokens": st.sampled_from(([VOCABULARY, 3], [3])),
} | grids.FIELDS  # fmt: skip

# -- blocks, stacks, models -------------------------------------------------------------------------------------------


def sublayer(draw: Draw, slot: Slot, **given: Any) -> dict[str, Any]:
    made = fields(draw, "Sublayer", slot) | given
    if not slot.careless and not refused(made["op"]) and getattr(decode(made["op"]), "reshapes", False):
        made["skip"] = grids.skip(draw)
    unusual = [
        "ZeroedPadding",
        "BlockInputStep",
        *(["NormedShortcut"] if slot.careless or made.get("pre_norm") else []),
    ]
    return made | {"kind": draw(st.sampled_from(unusual))} if draw(st.integers(0, 9)) == 9 else made


def without(made: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in made.items() if name not in names}


def block(draw: Draw, slot: Slot, cross: bool = False) -> dict[str, Any]:
    """One to three steps; sometimes two of them are parallel."""
    steps = {name: sublayer(draw, slot) for name in ("first", "second", "third")[: draw(st.integers(1, 3))]}
    if cross:
        looks = without(fields(draw, "Attention", slot), "mask", "position")
        steps["cross"] = sublayer(draw, slot, op=looks | {"memory": True})
    shaped = any(step.get("skip") for step in steps.values()) and not slot.careless
    if shaped:  # the Block's input has a different shape
        steps = {name: step | {"kind": "Sublayer"} if step["kind"] == "BlockInputStep" else step
                 for name, step in steps.items()}  # fmt: skip
    if len(steps) > 1 and draw(st.integers(0, 3)) == 3 and not shaped:
        side = {name: steps.pop(name) for name in list(steps)[-2:]}
        if not slot.careless:
            side = {name: without(step, "out_norm") | {"kind": "Sublayer"} for name, step in side.items()}
        steps["side"] = {"kind": "Parallel", **side}
    return {"kind": "Block", **steps}


def reversible(made: dict[str, Any]) -> dict[str, Any]:
    """The same block on two streams, if its steps can be inverted."""
    steps = {name: without(step, "out_norm") | {"kind": "Sublayer"} if name != "kind" and "op" in step else step
             for name, step in made.items()}  # fmt: skip
    made = steps | {"kind": "Reversible"}
    return steps if refused(made) else made


def stack(draw: Draw, slot: Slot) -> dict[str, Any]:
    cross = slot.memory and (not slot.careless or draw(st.booleans()))
    made = fields(draw, "Stack", slot) | {"depth": draw(st.integers(1, 3))}
    if draw(st.integers(0, 2)) == 2:
        made["layers"] = {name: block(draw, slot, cross) for name in "ab"}
        made["pattern"] = draw(st.sampled_from((["a", "b"], ["b", "a", "a"])))
    else:
        made["layers"] = block(draw, slot, cross)
    if draw(st.integers(0, 9)) == 9 and not refused(made | {"kind": "TimedStack"}):
        made["kind"] = "TimedStack"
    if draw(st.integers(0, 9)) == 9:
        made["order"] = [*range(made["depth"]), 0]
    if (slot.reshapes or slot.writes) and draw(st.integers(0, 5)) == 5:  # not for stacks that are followed by others
        kinds = made["layers"] if made.get("pattern") else {"": made["layers"]}
        twice = {name: reversible(each) for name, each in kinds.items()}
        if all(each["kind"] == "Reversible" for each in twice.values()):
            made["layers"] = twice if made.get("pattern") else twice[""]
    return made if slot.careless or not refused(made) else without(made, "position", "order", "layer_drop", "neck")


def refused(made: dict[str, Any]) -> bool:
    try:
        decode(made)
    except ValueError:
        return True
    return False


def encoder(draw: Draw, slot: Slot) -> dict[str, Any]:
    """One stack, or several: on coarser grids of an image, or on shorter texts."""
    several = "Funnel" if slot.source != "pixel_values" else "Stack" if "a video" in slot.gives else "Stages"
    kind = draw(st.sampled_from(("Stack", "Stack", "Stack", several, "Perceiver")))
    if kind == "Perceiver":
        return perceiver(draw, slot)
    if kind == "Stack":
        return stack(draw, dataclasses.replace(slot, reshapes=True))
    if kind == "Stages":
        return {"kind": "Stages", "stages": [stack(draw, slot), stack(draw, dataclasses.replace(
            slot, width=2 * slot.width))], "down": [part(draw, Part.kinds["Down"], slot)]}  # fmt: skip
    slot = dataclasses.replace(slot, shortened=True)
    made = {"kind": "Funnel", "stages": [stack(draw, slot) for _ in range(draw(st.integers(1, 2)))]}
    return made | {"pool": fields(draw, "Halve", slot)} | ({"top": stack(draw, slot)} if draw(st.booleans()) else {})


def perceiver(draw: Draw, slot: Slot) -> dict[str, Any]:
    """Latents have no token ids, grid or other properties of the input."""
    width = draw(st.sampled_from((None, 2 * slot.width)))
    inner = dataclasses.replace(slot, width=width or slot.width, shortened=True, gives=())
    made = fields(draw, "Perceiver", inner) | {"width": width, "stack": without(stack(draw, inner), "neck")}
    if made.get("rounds", 1) > 1:
        made["stack"] = without(made["stack"], "norm")
    made |= {"reread": made.get("rounds", 1) > 1 and made.get("reread", False)}
    if not slot.careless and draw(st.integers(0, 3)):
        made["write"] = without(fields(draw, "Write", slot), "count", "width")
    return made


def embedding(draw: Draw, slot: Slot, source: str | None) -> dict[str, Any]:
    """An embedding of text, vectors, pixels, audio or episodes."""
    source = source or draw(st.sampled_from(SOURCES))
    names = [name for name in kinds(Embedding) if source_of(name) == source and name not in NEVER_DRAWN]
    made = fields(draw, choose(draw, names), slot)
    return grids.patches(draw, made) if source == "pixel_values" else made


def source_of(name: str) -> str:
    return Part.kinds[name].inputs[0]  # type: ignore[attr-defined]


def reading(slot: Slot, embedding: dict[str, Any]) -> Slot:
    source = source_of(embedding["kind"])
    slot = dataclasses.replace(slot, patch=embedding.get("patch_size"))
    try:
        made = decode(embedding)
        return dataclasses.replace(slot, source=source, gives=made.gives, features=getattr(made, "features", 8))
    except ValueError:  # the model will be refused too
        return dataclasses.replace(slot, source=source)


def head(draw: Draw, slot: Slot) -> dict[str, Any]:
    """Any head; in half of the cases one with requirements that few embeddings meet."""
    names = [name for name in fitting(kinds(Head), slot) if name not in NEVER_DRAWN]
    choosy = [name for name in names if needs(name)]
    return fields(draw, choose(draw, choosy if choosy and draw(st.booleans()) else names), slot)


def init(draw: Draw, slot: Slot) -> dict[str, Any]:
    """The initialisers; sometimes one group of matrices differs from the rest."""
    made = {"*": {"kind": "Normal", "std": 0.1}}
    if draw(st.integers(0, 4)) < 4:
        return made
    names = [name for name in kinds(Initializer) if name not in NEVER_DRAWN]
    pattern = draw(st.sampled_from(("*.o.weight", "*.up.weight", "*.tokens.weight", "head.out.weight")))
    return {pattern: fields(draw, choose(draw, names), slot), **made}


def _model(draw: Draw, source: str | None = None) -> dict[str, Any]:
    shapes = ("DecoderModel", "EncoderModel", "EncoderDecoderModel")
    shape = "EncoderModel" if source is not None else draw(st.sampled_from(shapes))
    heads = draw(st.sampled_from((2, 1, 4)))
    slot = Slot(width=heads * draw(st.sampled_from((8, 12, 16)) if heads < 4 else st.sampled_from((4, 8, 12))),
                  heads=heads, careless=draw(st.sampled_from(range(10))) == 5)  # fmt: skip
    made: dict[str, Any] = {"kind": shape, "width": slot.width, "init": init(draw, slot)}
    if shape != "EncoderModel" and draw(st.integers(0, 9)):
        source = "input_ids"
    made["embedding"] = embedding(draw, slot, source)
    slot = reading(slot, made["embedding"])
    if shape != "DecoderModel":
        made["encoder"] = (encoder if shape == "EncoderModel" else stack)(draw, slot)
    if shape != "EncoderModel":
        memory = shape == "EncoderDecoderModel" or draw(st.integers(0, 9)) == 9
        slot = dataclasses.replace(slot, writes=True, memory=memory)
        if shape == "EncoderDecoderModel":
            made["decoder_embedding"] = embedding(draw, slot, "input_ids")
            slot = reading(slot, made["decoder_embedding"])
        made["decoder"] = stack(draw, slot)
    if shape != "EncoderModel" and draw(st.integers(0, 3)):
        made["head"] = fields(draw, "LMHead", slot)
    elif draw(st.integers(0, 5)):
        made["head"] = head(draw, slot)
    if made.get("head", {}).get("kind") == "LMHead" and slot.source == "input_ids" and draw(st.booleans()):
        reads = "decoder_embedding" if shape == "EncoderDecoderModel" else "embedding"
        tokens = made[reads]["tokens"]
        if slot.careless or (tokens["kind"] == "Tokens" and tokens.get("width") is None):
            made["ties"] = [["head.out.weight", f"{reads}.tokens.weight"]]
    return made


OPS = kinds(Op)
SOURCES = sorted(set(map(source_of, kinds(Embedding))))

OWN = "the initialiser of one Part, which uses it whenever it is drawn"
AGAIN = "for autoencoders, which have no layers: tests/models/test_autoencoder.py"
BOTH = "combines models that are drawn separately; tested by the catalogue's suite or in their families"
SIDES = "its widths must add up to the model's width: tests/parts/position/test_absolute.py"
ORDER = "a stack that needs one particular embedding and its inputs: test_two_streams.py, the catalogue's suite"
SPANS = "returns positions, for which a text must have enough tokens: test_xlnet.py, the catalogue's suite"
FED = "a decoder and towers that are drawn separately; tested by the catalogue's suite or in their families"
NEVER_DRAWN = {
    **{name: OWN for name in kinds(Initializer) if Part.kinds[name].__module__ != Initializer.__module__},
    "AxialLearned": SIDES,
    "TransparentAttention": "its memory is as wide as all layers together: test_weighted_transformer.py",
    **dict.fromkeys(("TwoTowerModel", "SimilarityHead", "ThreeTowerModel", "SpacesHead"), BOTH),
    **dict.fromkeys(("SigmoidSimilarityHead", "PooledVector"), BOTH),
    **dict.fromkeys(
        ("AutoencoderModel", "ConvDecoder", "KLDecoder", "GumbelCodes", "RoundedCodes", "GaussianLatent"), AGAIN
    ),
    **dict.fromkeys(("TwoStreams", "OrderedText"), ORDER),
    "LastTokenStartModel": "an EncoderDecoderModel with a different first input for labels: test_encoder_decoder.py",
    "LikelySpans": SPANS,
    "SparseHead": "with labels, its scores are one row per label: the catalogue's suite",
    "PredictionPool": "`pool` draws only Pool; tested by the catalogue's suite",
    **dict.fromkeys(
        ("TowerDecoderModel", "Tower", "MLPProjector", "TowerEncoderModel", "HiddenSpansModel", "HiddenSpansHead"), FED
    ),
}
