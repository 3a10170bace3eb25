"""The parts that speech models over waveforms share: wav2vec 2.0's stem, SpecAugment, heads and tensor names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.families.base.fields import Absent, Ignored
from anyformer.families.base.template import Class, Config, Entry, entry, equal_heads, parameter
from anyformer.parts import (
    CTCHead, ClassifyHead, ContrastHead, ConvolutionAdapter, ConvolutionStem, Convolutional, FrameHead, Initializer,
    Kaiming, LayerMix, LayerNorm, MeanTokens, Model, Neck, Norm, Normal, Pool, Quantizer, SpecAugment, SpeechNeck,
    SpeechOutput, Uniform, Unused, Value, WaveformEmbedding, XVectorHead,
)  # fmt: skip
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Rename, Reshape, Rule

STEM, AUGMENT, ADAPTER = "embedding.stem", "embedding.augment", "encoder.neck.adapter"
CLASSIFIERS = ("ForSequenceClassification", "ForAudioFrameClassification", "ForXVector")

POSITION = Convolutional(kernel=128, groups=16, activation="gelu")
STRIDES, KERNELS = (5, 2, 2, 2, 2, 2, 2), (10, 3, 3, 3, 3, 2, 2)
EMBEDDING = WaveformEmbedding(
    stem=ConvolutionStem(
        widths=(512,) * 7, kernels=KERNELS, strides=STRIDES, bias=False, norm="group", activation="gelu"
    ),
    norm=LayerNorm(eps=1e-5),
    augment=SpecAugment(
        time=0.05,
        time_span=10,
        time_least=2,
        channels=0.0,
        channel_span=10,
        channel_least=0,
        learned=True,
        active=True,
    ),
    position=POSITION,
    dropout=0.1,
)
TDNN: dict[str, Any] = {"widths": (512, 512, 512, 512, 1500), "kernels": (5, 3, 3, 1, 1), "dilations": (1, 2, 3, 1, 1)}


def codes(theirs: str, spec: Model) -> list[Rule]:
    q: Quantizer = value_at(spec, "head.quantizer")
    return [Reshape(theirs, "head.quantizer.codes", (1, q.groups * q.codes, q.width // q.groups))]


def classes(name: str) -> dict[str, Class]:
    pool = Pool(take=MeanTokens(), dense=True, width=256)
    return {
        f"{name}Model": Class(SpeechOutput(), prefix=""),
        f"{name}ForCTC": Class(CTCHead(vocab_size=32, blank=0, dropout=0.1, reduction="sum"), "lm_head"),
        f"{name}ForSequenceClassification": Class(
            ClassifyHead(num_labels=2, pool=pool, problem="single_label_classification"),
            "classifier",
            weights={"projector": "head.pool.dense"},
        ),
        f"{name}ForAudioFrameClassification": Class(FrameHead(num_labels=2), "classifier"),
        f"{name}ForXVector": Class(
            XVectorHead(num_labels=2, width=512, **TDNN),
            "classifier",
            weights={
                "projector": "head.project",
                "tdnn.{i}.kernel": "head.layers.{i}",
                "feature_extractor": "head.vector",
                "objective.weight": parameter("head.speakers"),
            },
        ),
        f"{name}ForPreTraining": Class(
            ContrastHead(
                features=512,
                width=256,
                dropout=0.0,
                temperature=0.1,
                negatives=100,
                diversity=0.1,
                quantizer=Quantizer(groups=2, codes=320, width=256),
            ),
            weights={
                "quantizer.codevectors": codes,
                "quantizer.weight_proj": "head.quantizer.choose",
                "project_{hid,q}": "head.{states,targets}",
            },
        ),
    }


def mixes(spec: Model) -> bool:
    if not spec.architecture.endswith(CLASSIFIERS):
        raise Absent
    return isinstance(value_at(spec, "encoder.neck"), LayerMix)


def adds_adapter(spec: Model) -> bool:
    neck = value_at(spec, "encoder.neck")
    return isinstance(neck, SpeechNeck) and neck.adapter is not None


AUGMENTATION = {  # frames and channels masked during training
    "mask_time_prob": f"{AUGMENT}.time",
    "mask_time_length": f"{AUGMENT}.time_span",
    "mask_time_min_masks": f"{AUGMENT}.time_least",
    "mask_feature_prob": f"{AUGMENT}.channels",
    "mask_feature_length": f"{AUGMENT}.channel_span",
    "mask_feature_min_masks": f"{AUGMENT}.channel_least",
}
NECK: dict[str, Any] = {  # read by `neck`
    "use_weighted_layer_sum": Entry(False, mixes),
    "add_adapter": Entry(False, adds_adapter),
    "adapter_kernel_size": Entry(3, f"{ADAPTER}.kernel"),
    "adapter_stride": Entry(2, f"{ADAPTER}.stride"),
    "num_adapter_layers": Entry(3, f"{ADAPTER}.depth"),
    "output_hidden_size": Entry(None, f"{ADAPTER}.width"),
}
HEADS: dict[str, Any] = {
    "final_dropout": "head[CTCHead].dropout",
    "ctc_loss_reduction": entry("head.reduction", choices=("sum", "mean")),
    "ctc_zero_infinity": "head.zero_infinity",
    "pad_token_id": entry("head.blank", read=lambda value, c: value or 0),
    "classifier_proj_size": "head.pool.width",
    "problem_type": None,  # always one label per recording
    "feat_quantizer_dropout": "head[ContrastHead].dropout",
    "num_codevectors_per_group": "head.quantizer.codes",
    "num_codevector_groups": "head.quantizer.groups",
    "contrastive_logits_temperature": "head.temperature",
    "num_negatives": "head.negatives",
    "codevector_dim": "head.quantizer.width",
    "proj_codevector_dim": "head[ContrastHead].width",
    "diversity_loss_weight": "head.diversity",
    "tdnn_dim": entry("head.widths", default=TDNN["widths"]),
    "tdnn_kernel": entry("head.kernels", default=TDNN["kernels"]),
    "tdnn_dilation": entry("head.dilations", default=TDNN["dilations"]),
    "xvector_output_dim": "head[XVectorHead].width",
}
# families add the addresses of hidden_act, dropouts and norms
CONFIG: dict[str, Any] = {
    "hidden_size": "width",
    "num_hidden_layers": "encoder.depth",
    "num_attention_heads": "encoder.layers.attention.op.num_heads",
    "intermediate_size": "encoder.layers.*.op[MLP].width",
    "activation_dropout": "encoder.layers.*.op[MLP].dropout",
    "layerdrop": "encoder.layer_drop",
    "initializer_range": Entry(0.02, lambda spec: spec.init["*"].std),
    **NECK,
    "feat_proj_dropout": "embedding.projection_dropout",
    "feat_extract_norm": f"{STEM}.norm",
    "conv_dim": entry(f"{STEM}.widths", default=(512,) * 7),
    "conv_stride": entry(f"{STEM}.strides", default=STRIDES),
    "conv_kernel": entry(f"{STEM}.kernels", default=KERNELS),
    "conv_bias": f"{STEM}.bias",
    "num_feat_extract_layers": Entry(None, lambda spec: len(spec.embedding.stem.widths)),
    "apply_spec_augment": f"{AUGMENT}.active",
    **AUGMENTATION,
    **HEADS,
    "bos_token_id": Ignored(1, "used by tokenizers"),
    "eos_token_id": Ignored(2, "used by tokenizers"),
}

# old checkpoints: weight normalisation was not yet a parametrisation
LEGACY = {
    "conv.weight_g": "conv.parametrizations.weight.original0",
    "conv.weight_v": "conv.parametrizations.weight.original1",
}


def check(c: Config) -> None:
    equal_heads(c)
    if c.add_adapter and c.architecture.endswith((*CLASSIFIERS, "ForPreTraining")):
        raise ValueError(f"add_adapter must be false: {c.architecture} has no adapter")
    if c.num_feat_extract_layers not in (None, len(c.conv_dim)):
        raise ValueError(f"num_feat_extract_layers is {c.num_feat_extract_layers}, but conv_dim has {len(c.conv_dim)}")
    if c.vocab_size is None and c.architecture.endswith("ForCTC"):
        raise ValueError(f"{c.architecture} needs vocab_size")


def neck(c: Config, norm: Norm | None) -> Neck | None:
    """Return the module after the last layer. If it averages all layers, files contain `norm`, but it is not used."""
    if c.use_weighted_layer_sum and c.architecture.endswith(CLASSIFIERS):
        return LayerMix(rest=None if norm is None else Unused(part=norm))
    adapter = (
        ConvolutionAdapter(
            width=c.output_hidden_size or c.hidden_size,
            depth=c.num_adapter_layers,
            kernel=c.adapter_kernel_size,
            stride=c.adapter_stride,
            layer_drop=c.layerdrop,
        )
        if c.add_adapter
        else None
    )
    return None if norm is None and adapter is None else SpeechNeck(norm=norm, adapter=adapter)


def torch_uniform(inputs: int) -> Uniform:
    """Return torch's default initialiser of a layer with this number of inputs."""
    return Uniform(low=-(inputs**-0.5), high=inputs**-0.5)


def init(c: Config, position: str) -> dict[str, Initializer]:
    inputs = [before * kernel for before, kernel in zip((1, *c.conv_dim), c.conv_kernel, strict=False)]
    return {
        **{f"{STEM}.convolutions.{i}.bias": torch_uniform(n) for i, n in enumerate(inputs)},
        f"{STEM}.convolutions.*.weight": Kaiming(),
        f"{STEM}.norms.*.weight": Value(value=1.0),
        "embedding.project.*": torch_uniform(c.conv_dim[-1]),
        f"{AUGMENT}.mask_embedding": Uniform(low=0.0, high=1.0),
        f"{position}.weight": Normal(std=2 * (c.num_conv_pos_embeddings * c.hidden_size) ** -0.5),
        f"{ADAPTER}.convolutions.*.weight": Kaiming(),
        f"{ADAPTER}.convolutions.*.bias": torch_uniform(
            (c.output_hidden_size or c.hidden_size) * c.adapter_kernel_size
        ),
        "encoder.neck.weight": Value(value=1 / (c.num_hidden_layers + 1)),
        "*": Normal(std=c.initializer_range or 0.02),
    }


def weights(position: str) -> dict[str, Any]:
    """Return the tensor names outside the layers; `position` is our address of the positional convolution."""
    theirs = "~encoder.pos_conv_embed.conv"
    return {
        "~feature_extractor.conv_layers.{i}.{conv,layer_norm}": f"{STEM}.{{convolutions,norms}}.{{i}}",
        "~feature_projection.{layer_norm,projection}": "embedding.{norm,project}",
        "~masked_spec_embed": parameter(f"{AUGMENT}.mask_embedding"),
        f"{theirs}.bias": parameter(f"{position}.bias"),
        f"{theirs}.parametrizations.weight.original{{0,1}}": parameter(f"{position}.{{scale,weight}}"),
        "~adapter.{proj,proj_layer_norm}": f"{ADAPTER}.{{project,norm}}",
        "~adapter.layers.{i}.conv": f"{ADAPTER}.convolutions.{{i}}",
        "layer_weights": parameter("encoder.neck.weight"),
    }


def one_of(*addresses: str) -> Callable[[str, Any], list[Rule]]:
    """Rules of a module that a description has at one of these addresses."""
    return lambda theirs, spec: [Rename(f"{theirs}.{{p}}", f"{ours}.{{p}}") for ours in addresses]


def pointwise(ours: str) -> Callable[[str, Any], list[Rule]]:
    """Rules of a linear layer that is published as a convolution with kernel size 1."""
    return lambda theirs, spec: [
        Reshape(f"{theirs}.weight", f"{ours}.weight", (-1, spec.width, 1)),
        Rename(f"{theirs}.bias", f"{ours}.bias"),
    ]
