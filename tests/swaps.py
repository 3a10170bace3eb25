"""Every kind of Part that fits a slot of a small causal model, with values for its fields.

B batch, T tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import anyformer as af
from anyformer.models import DecoderModel, Model
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Normal
from anyformer.parts.mask import Causal
from anyformer.parts.norm import LayerNorm
from anyformer.specs.codec import decode, kinds
from anyformer.specs.part import Part
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer

T, V = 12, 40
kinds()
# kinds of models; kinds of runs and data may also be registered, if a different test imported them
MODELS = ("anyformer.parts.", "anyformer.stacks.", "anyformer.models")
OURS = {name: kind for name, kind in Part.kinds.items() if kind.__module__.startswith(MODELS)}
TEXT = {"kind": "TextEmbedding", "tokens": {"kind": "Tokens", "vocab_size": V}}
ATTENTION = {"kind": "Attention", "num_heads": 4, "mask": {"kind": "Causal"}}

# slot -> kind -> fields, with every kind that processes tokens; a test fails if a kind is missing
MASKS: dict[str, dict[str, Any]] = {
    "Full": {}, "Causal": {}, "Window": {"size": 3}, "Dilated": {"step": 2}, "Global": {"first": 2},
    "SameBlock": {"size": 4}, "Strided": {"stride": 3}, "Fixed": {"stride": 4}, "Axial": {"columns": 4},
    "RandomBlocks": {"size": 2, "per_row": 2, "num_blocks": 3}, "Padding": {}, "SameDocument": {},
    "SameReach": {}, "BlockAndBefore": {"size": 3, "before": 2},
    "GridBlocks": {"columns": 4, "size": [2, 2], "above": 1, "beside": 1},
    "All": {"masks": [{"kind": "Window", "size": 3}, {"kind": "Causal"}]},
    "Either": {"masks": [{"kind": "Causal"}, {"kind": "Global"}]}, "Not": {"mask": {"kind": "Causal"}},
}  # fmt: skip
TAPS = {"kind": "Convolved", "width": 8}
OPS: dict[str, dict[str, Any]] = {
    "Attention": {"num_heads": 4}, "BlockAttention": {"num_heads": 4, "size": 4},
    "JointNormAttention": {"num_heads": 4}, "CompressedAttention": {"num_heads": 4}, "LatentAttention": {
        "num_heads": 4, "rank": 6, "head_width": 4, "rotary_width": 4, "value_width": 4, "position": {"kind": "Rope"},
        "mask": {"kind": "Causal"},
    },
    "BlockSparseAttention": {"num_heads": 4, "block_size": 2, "random_blocks": 1, "length": 64},
    "LinformerAttention": {"num_heads": 4, "length": 16, "projected": 4}, "LinearAttention": {"num_heads": 4},
    "LocalAttention": {"num_heads": 4, "window": 2},
    "NystromAttention": {"num_heads": 4, "length": 12, "landmarks": 4},
    "Windows": {"mixer": ATTENTION, "size": 2}, "ConvolutionModule": {"kernel": 3, "norm": {"kind": "LayerNorm"}},
    "SelectiveState": {"width": 32}, "DualState": {"num_heads": 2, "head_width": 8, "states": 4}, "TimeMix": {},
    "ChannelMix": {"width": 24}, "MLP": {"width": 24}, "GatedMLP": {"width": 24},
    "ClampedGatedMLP": {"width": 24, "limit": 0.5},
    "MoE": {"num_experts": 3, "router": {"kind": "TopK"}, "expert": {"kind": "MLP", "width": 8}},
    "Unused": {"part": {"kind": "MLP", "width": 8}}, "PooledAttention": {"num_heads": 4},
    "LocalRelation": {"num_heads": 4}, "HaloAttention": {"num_heads": 4}, "NonLocal": {}, "CrissCross": {},
    "TokenLearner": {"tokens": 3}, "PoolingAttention": {"num_heads": 4, "window": 2, "far": 4},
    "DebertaAttention": {"num_heads": 4},
    "BranchedAttention": {"num_heads": 4, "feedforward": {"kind": "MLP", "width": 8}},
    "Synthesizer": {"num_heads": 4, "length": 16}, "ProductKeyMemory": {"keys": 4, "top_k": 2, "query_width": 4},
    "LightweightConvolution": {"num_heads": 4, "kernel": 3}, "Gate": {}, "LSTM": {}, "GRU": {}, "S4": {"states": 8},
    "AdditiveAttention": {}, "InducedAttention": {"num_heads": 4, "points": {"kind": "Seeds", "num_heads": 2}},
    "LunaAttention": {"num_heads": 4, "tokens": 3}, "LSHAttention": {"num_heads": 4, "chunk": 4, "buckets": [4]},
    "ChunkAttention": {"num_heads": 4, "chunk": 3},
    "SinkhornAttention": {"num_heads": 4, "length": 16, "block": 3},
    "RoutingAttention": {"num_heads": 4, "clusters": 2, "window": 4, "decay": 1.0},
    "RecurrentAttention": {"num_heads": 4, "segment": 2, "kept": 2, "compressed": 2, "rate": 2},
    "BranchedConvolution": {"left": TAPS, "right": TAPS, "out": TAPS}, "TokenConvolution": {},
    "LanguageSpecific": {"op": {"kind": "MLP", "width": 8}, "tokens": [5, 6, 7]},
}  # fmt: skip
NORMS: dict[str, dict[str, Any]] = {"LayerNorm": {}, "RMSNorm": {}, "ScaleNorm": {}, "UnitNorm": {},
                                    "BatchNorm": {}, "ZeroCenteredRMSNorm": {}, "LaterLayerNorm": {}}  # fmt: skip
RESIDUALS: dict[str, dict[str, Any]] = {
    "Add": {}, "Scaled": {}, "ReZero": {}, "Fixup": {}, "LayerScale": {}, "Activated": {}, "Halved": {"every": 2},
}  # fmt: skip
ROUTERS: dict[str, dict[str, Any]] = {
    "TopK": {},
    "Switch": {"capacity": 3},
    "GShard": {"capacity": 3},
    "NoisyTopK": {"top_k": 2},
}
EXPERTS = {name: {**OPS[name], "width": 8} for name in ("MLP", "GatedMLP", "ClampedGatedMLP")}
POSITIONS: dict[str, dict[str, Any]] = {
    "Learned": {"length": 32}, "ResizedLearned": {"length": 32}, "AxialLearned": {"shape": [4, 8], "widths": [6, 10]},
    "SeparableLearned": {"length": 32, "frames": 4}, "Sinusoidal": {"length": 32},
    "Sinusoidal2D": {"rows": 6, "columns": 6}, "Integer": {},
    "Binary": {"bits": 6}, "Convolutional": {"kernel": 4, "groups": 4},
    "TreeDepth": {"scheme": {"kind": "Learned", "length": 32}},
    "Summed": {"parts": [{"kind": "Convolutional", "kernel": 4, "groups": 4}]},
    "DegreeCentrality": {},
    "Concatenated": {"scheme": {"kind": "Sinusoidal", "length": 32}, "width": 6},
}  # fmt: skip
RELATIVE: dict[str, dict[str, Any]] = {
    "Rope": {}, "InputRope": {}, "BucketedBias": {"num_heads": 4}, "DistanceBias": {"num_heads": 4, "before": 3},
    "RelativeVectors": {"before": 3}, "Alibi": {"num_heads": 4}, "RelativeSinusoids": {"num_heads": 4},
    "Disentangled": {"num_heads": 4, "reach": 6}, "ShortestPathBias": {"num_heads": 4, "edge_kinds": 2},
    "GlobalLocalVectors": {"first": 2, "reach": 3},
}  # fmt: skip
ROPES = {
    "LinearScaling": {"factor": 2.0}, "DynamicScaling": {"factor": 2.0, "length": 32},
    "YarnScaling": {"factor": 2.0, "length": 16}, "ProportionalScaling": {"share": 0.5},
    "LongScaling": {"short": (1.5,), "long": (2.5,), "length": 32},
    "Llama3Scaling": {"factor": 2.0, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "length": 16},
}  # fmt: skip
FEATURES: dict[str, dict[str, Any]] = {
    "EluFeatures": {},
    "SoftmaxFeatures": {"count": 8},
    "RandomFeatures": {"count": 256},
}
NECKS: dict[str, dict[str, Any]] = {
    "LayerMix": {}, "TextOnly": {}, "OutputProjection": {"width": 12},
    "ChosenLayers": {"layers": (0, 1)},
    "UnusedNeck": {"part": {"kind": "MLP", "width": 8}},
    "SpeechNeck": {"norm": {"kind": "LayerNorm"}, "adapter": {"kind": "ConvolutionAdapter", "width": 16, "depth": 1}},
}  # fmt: skip
STEPS: dict[str, dict[str, Any]] = {
    kind: {"pre_norm": {"kind": "LayerNorm"}, "op": {"kind": "MLP", "width": 24}}
    for kind in ("NormedShortcut", "ZeroedPadding", "BlockInputStep")
}
STACKS = {"TimedStack": {"layers": {"kind": "Block", "attention": {"kind": "Sublayer", "op": ATTENTION}}, "depth": 2}}
TEXTS: dict[str, dict[str, Any]] = {
    "TextEmbedding": {}, "GlobalTextEmbedding": {"global_tokens": "first"}, "SegmentedText": {},
    "BlockTextEmbedding": {"block_size": 2, "random_blocks": 1}, "SubwordBlocks": {"blocks": 3, "downsample": 1},
    "TaskText": {}, "LanguageText": {"languages": 2}, "HiddenTokenText": {"hidden_token": 0}, "ZeroedPaddingText": {},
    "XLMText": {"hidden_token": 0},
}  # fmt: skip
SLOTS: dict[str, dict[str, dict[str, Any]]] = {
    "decoder.layers.attention.op.mask": MASKS, "decoder.layers.attention.op": OPS,
    "decoder.layers.feedforward": STEPS,
    "decoder.layers.attention.pre_norm": NORMS, "decoder.layers.attention.op.qk_norm": NORMS,
    "head.transform.norm": NORMS, "decoder.norm": NORMS, "decoder.layers.feedforward.residual": RESIDUALS,
    "embedding.position": POSITIONS, "decoder.layers.attention.op.position": RELATIVE,
    "decoder.layers.attention.op.position.scaling": ROPES, "decoder.neck": NECKS, "decoder": STACKS, "embedding": TEXTS,
    "decoder.layers.attention.op.scores.0": {"SoftCap": {}, "LearnedScale": {}, "ScaleByLayer": {}, "TalkingHeads": {}},
    "decoder.layers.attention.op.normalizer": {"Softmax": {}, "Entmax": {}, "Sparsemax": {}, "Sinks": {}},
    "decoder.layers.attention.op.left": {"Convolved": {"width": 8}},
    "embedding.tokens": {
        "AdaptiveTokens": {"vocab_size": V, "widths": [8, 4], "cutoffs": [12]}, "ScaledTokens": {"vocab_size": V},
        "SpareTableTokens": {"vocab_size": V},
    },
    "embedding.segments": {"TokenSegments": {}, "IgnoredSegments": {}},
    "head": {kind: {"vocab_size": V} for kind in ("OffsetLMHead", "OwnVocabularyHead", "OwnVocabularyOffsetHead")},
    "decoder.layers.feedforward.op.router": ROUTERS,
    "decoder.layers.feedforward.op.expert": EXPERTS, "decoder.layers.attention.op.features": FEATURES,
}  # fmt: skip
# slot -> changes that must be made before the slot can be filled
GROUND: dict[str, dict[str, Any]] = {
    "decoder.layers.attention.op.scores.0": {"decoder.layers.attention.op.scores": [{"kind": "SoftCap"}]},
    "head.transform.norm": {"head.transform": {"kind": "Transform", "activation": "gelu", "norm": {"kind": "RMSNorm"}}},
    "decoder.layers.attention.op.position.scaling": {"decoder.layers.attention.op.position": {"kind": "Rope"}},
    **{f"decoder.layers.feedforward.op.{slot}": {"decoder.layers.feedforward.op": {"kind": "MoE", **OPS["MoE"]}}
       for slot in ("router", "expert")},
    "decoder.layers.attention.op.features":
        {"decoder.layers.attention.op": {"kind": "LinearAttention", "num_heads": 4, "mask": {"kind": "Causal"}}},
    "decoder.layers.attention.op.left":
        {"decoder.layers.attention.op": {"kind": "BranchedConvolution", **OPS["BranchedConvolution"], "causal": True}},
}  # fmt: skip
NOT_FOR_TEXT = {  # kinds for images and audio, or for stacks of a different shape
    "Stages", "Funnel", "Merge", "PatchEmbedding", "WaveformEmbedding", "ConvolutionStem", "SpecAugment", "Vectors",
    "GridBias", "SegmentedSinusoids", "ConvolutionAdapter", "Block", "Parallel", "Reversible", "Stack", "Sublayer",
    "Tokens", "Transform", "PredictionTransform", "AxialRope",
    "ContinuousGridBias", "SpectrogramEmbedding", "Quantizer", "TrajectoryEmbedding", "VideoEmbedding", "GridPool",
    "GridVectors", "Skip", "SubsampledSpectrogram", "Convolution", "Convolutions", "ResidualDown", "OpLayer",
    "LayersDown", "ConvolutionEmbedding", "ConvEmbedding", "ConvDecoder", "GumbelCodes", "RoundedCodes",
    "GaussianLatent", "KLEmbedding", "KLDecoder",
    "AdaptiveNorm", "Gated", "StepAndLabel", "NoisyEmbedding", "Sinusoidal2D", "PairEmbedding",
    "Tower", "MLPProjector", "SegmentEmbedding", "Perceiver", "RowNorm", "TwoStreams", "OrderedText",
    "TransparentAttention", "PrefixTokens", "ConstantDropSublayer",
}  # fmt: skip
SWAPS = [(slot, kind) for slot, kinds in SLOTS.items() for kind in kinds]


def plain(**changes: Any) -> DecoderModel:
    """Return the description of a small causal model with standard parts."""
    block = Block(
        attention=Sublayer(pre_norm=LayerNorm(), op=Attention(num_heads=4, mask=Causal())),
        feedforward=Sublayer(pre_norm=LayerNorm(), op=MLP(width=24)),
    )
    return DecoderModel(**{
        "width": 16, "embedding": TextEmbedding(tokens=Tokens(vocab_size=V)), "head": LMHead(vocab_size=V),
        "decoder": Stack(layers=block, depth=2), "init": {"*": Normal(std=0.3)}, **changes,
    })  # fmt: skip


def part_of(slot: str, kind: str) -> Part:
    fields = SLOTS[slot][kind]
    return decode({**(TEXT if slot == "embedding" else {}), **fields, "kind": kind})


def swapped(slot: str, kind: str) -> DecoderModel:
    return af.override(plain(), {**GROUND.get(slot, {}), slot: part_of(slot, kind)})


def text(seed: int = 0) -> Tensor:
    return torch.randint(1, V, (2, T), generator=torch.Generator().manual_seed(seed))


def stirred(spec: Model, seed: int = 0) -> Any:
    """Build a model and add noise to all weights, including those initialised to zero."""
    model, generator = af.build(spec, seed=seed), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model
