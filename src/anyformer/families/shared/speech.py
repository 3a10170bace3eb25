"""What the speech models that read waveforms share: wav2vec 2.0's stem, augmentation and heads, and their published
names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.families.base.fields import Absent, ConfigField, Field, Ignored, activation_at
from anyformer.families.base.template import Config, equal_heads
from anyformer.models import Model
from anyformer.parts.activation import activation_named
from anyformer.parts.embedding.spec_augment import SpecAugment
from anyformer.parts.embedding.waveform import ConvolutionStem, WaveformEmbedding
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.contrastive import ContrastHead, Quantizer
from anyformer.parts.head.ctc import CTCHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.speech import ConvolutionAdapter, FrameHead, SpeechNeck, SpeechOutput
from anyformer.parts.head.xvector import XVectorHead
from anyformer.parts.init import Initializer, Kaiming, Normal, Uniform, Value
from anyformer.parts.layer_mix import LayerMix, Neck
from anyformer.parts.norm import LayerNorm, Norm
from anyformer.parts.position.absolute import Convolutional
from anyformer.parts.unused import Idle
from anyformer.specs.addresses import at
from anyformer.specs.part import Part
from anyformer.weights.rules import Rename, Reshape, Rule

STEM, AUGMENT = "embedding.stem", "embedding.augment"
ATTENTION, MLP_OP = "encoder.layers.attention", "encoder.layers.feedforward.op"
ADAPTER = "encoder.neck.adapter"
KINDS = ("ForCTC", "ForSequenceClassification", "ForAudioFrameClassification", "ForXVector", "ForPreTraining")
CLASSIFIERS = ("ForSequenceClassification", "ForAudioFrameClassification", "ForXVector")
# what training hides of frames and channels
HIDDEN: dict[str, ConfigField] = {
    "mask_time_prob": Field(0.05, f"{AUGMENT}.time"),
    "mask_time_length": Field(10, f"{AUGMENT}.time_span"),
    "mask_time_min_masks": Field(2, f"{AUGMENT}.time_least"),
    "mask_feature_prob": Field(0.0, f"{AUGMENT}.channels"),
    "mask_feature_length": Field(10, f"{AUGMENT}.channel_span"),
    "mask_feature_min_masks": Field(0, f"{AUGMENT}.channel_least"),
}


def of(kind: type, path: str) -> Callable[[Any], Any]:
    """Reads a field of one kind of head, where another has one of the same name."""

    def read(spec: Model) -> Any:
        if not isinstance(spec.head, kind):
            raise Absent
        return at(spec, path)

    return read


def mixes(spec: Model) -> bool:
    if not spec.architecture.endswith(CLASSIFIERS):
        raise Absent
    return isinstance(at(spec, "encoder.neck"), LayerMix)


FIELDS: dict[str, ConfigField] = {
    "hidden_size": Field(768, "width"),
    "num_hidden_layers": Field(12, "encoder.depth"),
    "num_attention_heads": Field(12, f"{ATTENTION}.op.num_heads"),
    "intermediate_size": Field(3072, f"{MLP_OP}.width"),
    "hidden_act": Field("gelu", activation_at(f"{MLP_OP}.activation")),
    "activation_dropout": Field(0.1, f"{MLP_OP}.dropout"),
    "attention_dropout": Field(0.1, f"{ATTENTION}.op.dropout"),
    "layerdrop": Field(0.1, "encoder.layer_drop"),
    "initializer_range": Field(0.02, lambda spec: spec.init["*"].std),
    "use_weighted_layer_sum": Field(False, mixes),
    "add_adapter": Field(False, lambda spec: getattr(spec.encoder.neck, "adapter", None) is not None),
    "adapter_kernel_size": Field(3, f"{ADAPTER}.kernel"),
    "adapter_stride": Field(2, f"{ADAPTER}.stride"),
    "num_adapter_layers": Field(3, f"{ADAPTER}.depth"),
    "output_hidden_size": Field(None, f"{ADAPTER}.width"),
    "hidden_dropout": Field(0.1, "embedding.dropout"),
    "feat_proj_dropout": Field(0.0, "embedding.projection_dropout"),
    "layer_norm_eps": Field(1e-5, "embedding.norm.eps"),
    "feat_extract_norm": Field("group", f"{STEM}.norm"),
    "feat_extract_activation": Field("gelu", activation_at(f"{STEM}.activation")),
    "conv_dim": Field((512,) * 7, f"{STEM}.widths"),
    "conv_stride": Field((5, 2, 2, 2, 2, 2, 2), f"{STEM}.strides"),
    "conv_kernel": Field((10, 3, 3, 3, 3, 2, 2), f"{STEM}.kernels"),
    "conv_bias": Field(False, f"{STEM}.bias"),
    "num_feat_extract_layers": Field(None, lambda spec: len(spec.embedding.stem.widths)),
    "apply_spec_augment": Field(True, f"{AUGMENT}.active"),
    **HIDDEN,
    "vocab_size": Field(None, "head.vocab_size"),
    "final_dropout": Field(0.1, of(CTCHead, "head.dropout")),
    "ctc_loss_reduction": Field("sum", "head.reduction", choices=("sum", "mean")),
    "ctc_zero_infinity": Field(False, "head.zero_infinity"),
    "pad_token_id": Field(0, "head.blank"),
    "classifier_proj_size": Field(256, "head.pool.width"),
    "bos_token_id": Ignored(1, "used by tokenizers"),
    "eos_token_id": Ignored(2, "used by tokenizers"),
    "feat_quantizer_dropout": Field(0.0, of(ContrastHead, "head.dropout")),
    "num_codevectors_per_group": Field(320, "head.quantizer.codes"),
    "num_codevector_groups": Field(2, "head.quantizer.groups"),
    "contrastive_logits_temperature": Field(0.1, "head.temperature"),
    "num_negatives": Field(100, "head.negatives"),
    "codevector_dim": Field(256, "head.quantizer.width"),
    "proj_codevector_dim": Field(256, of(ContrastHead, "head.width")),
    "diversity_loss_weight": Field(0.1, "head.diversity"),
    "tdnn_dim": Field((512, 512, 512, 512, 1500), "head.widths"),
    "tdnn_kernel": Field((5, 3, 3, 1, 1), "head.kernels"),
    "tdnn_dilation": Field((1, 2, 3, 1, 1), "head.dilations"),
    "xvector_output_dim": Field(512, of(XVectorHead, "head.width")),
}

# checkpoints from before weight normalisation became a parametrisation
LEGACY = {
    "conv.weight_g": "conv.parametrizations.weight.original0",
    "conv.weight_v": "conv.parametrizations.weight.original1",
}


def augment(c: Config, learned: bool = True) -> SpecAugment:
    """As a config says; what is hidden becomes a learned vector, or zeros."""
    return SpecAugment(
        time=c.mask_time_prob,
        time_span=c.mask_time_length,
        time_least=c.mask_time_min_masks,
        channels=c.mask_feature_prob,
        channel_span=c.mask_feature_length,
        channel_least=c.mask_feature_min_masks,
        learned=learned,
        active=c.apply_spec_augment,
    )


def waveform(c: Config, position: Part | None, out_norm: Norm | None = None) -> WaveformEmbedding:
    if c.num_feat_extract_layers not in (None, len(c.conv_dim)):
        raise ValueError(f"num_feat_extract_layers is {c.num_feat_extract_layers}, conv_dim has {len(c.conv_dim)}")
    stem = ConvolutionStem(
        widths=c.conv_dim,
        kernels=c.conv_kernel,
        strides=c.conv_stride,
        bias=c.conv_bias,
        norm=c.feat_extract_norm,
        activation=activation_named(c.feat_extract_activation),
    )
    return WaveformEmbedding(
        stem=stem,
        norm=LayerNorm(eps=c.layer_norm_eps),
        projection_dropout=c.feat_proj_dropout,
        augment=augment(c),
        position=position,
        out_norm=out_norm,
        dropout=c.hidden_dropout,
    )


def positional(c: Config) -> Convolutional:
    return Convolutional(
        kernel=c.num_conv_pos_embeddings,
        groups=c.num_conv_pos_embedding_groups,
        activation=activation_named(c.feat_extract_activation),
    )


def check(c: Config) -> None:
    equal_heads(c)
    if c.add_adapter and c.architecture.endswith((*CLASSIFIERS, "ForPreTraining")):
        raise ValueError(f"{c.architecture} has no adapter: add_adapter must be false")


def neck(c: Config, norm: Norm | None) -> Neck | None:
    """What follows the last layer; `norm` is not used where all layers are averaged, and stands in the files."""
    if c.use_weighted_layer_sum and c.architecture.endswith(CLASSIFIERS):
        return LayerMix(rest=None if norm is None else Idle(part=norm))
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


def head(c: Config) -> Head:
    """By the ending of the class name."""
    kind = c.architecture.rpartition("For")[2]
    match kind:
        case "CTC":
            if c.vocab_size is None:
                raise ValueError(f"{c.architecture} needs vocab_size")
            return CTCHead(
                vocab_size=c.vocab_size,
                blank=c.pad_token_id or 0,
                dropout=c.final_dropout,  # null: for labels alone
                reduction=c.ctc_loss_reduction,
                zero_infinity=c.ctc_zero_infinity,
            )
        case "SequenceClassification":
            pool = Pool(take="mean", dense=True, width=c.classifier_proj_size)
            return ClassifyHead(num_labels=c.num_labels, pool=pool, problem="single_label_classification")
        case "AudioFrameClassification":
            return FrameHead(num_labels=c.num_labels)
        case "XVector":
            return XVectorHead(
                num_labels=c.num_labels,
                widths=c.tdnn_dim,
                kernels=c.tdnn_kernel,
                dilations=c.tdnn_dilation,
                width=c.xvector_output_dim,
            )
        case "PreTraining":
            return ContrastHead(
                features=c.conv_dim[-1],
                width=c.proj_codevector_dim,
                dropout=c.feat_quantizer_dropout,
                temperature=c.contrastive_logits_temperature,
                negatives=c.num_negatives,
                diversity=c.diversity_loss_weight,
                quantizer=Quantizer(
                    groups=c.num_codevector_groups, codes=c.num_codevectors_per_group, width=c.codevector_dim
                ),
            )
    return SpeechOutput()


def around(inputs: int) -> Uniform:
    """What torch gives a layer with so many inputs."""
    return Uniform(low=-(inputs**-0.5), high=inputs**-0.5)


def init(c: Config, position: str) -> dict[str, Initializer]:
    inputs = [before * kernel for before, kernel in zip((1, *c.conv_dim), c.conv_kernel, strict=False)]
    return {
        **{f"{STEM}.convolutions.{i}.bias": around(n) for i, n in enumerate(inputs)},
        f"{STEM}.convolutions.*.weight": Kaiming(),
        f"{STEM}.norms.*.weight": Value(value=1.0),
        "embedding.project.*": around(c.conv_dim[-1]),
        f"{AUGMENT}.mask_embedding": Uniform(low=0.0, high=1.0),
        f"{position}.weight": Normal(std=2 * (c.num_conv_pos_embeddings * c.hidden_size) ** -0.5),
        f"{ADAPTER}.convolutions.*.weight": Kaiming(),
        f"{ADAPTER}.convolutions.*.bias": around((c.output_hidden_size or c.hidden_size) * c.adapter_kernel_size),
        "encoder.neck.weight": Value(value=1 / (c.num_hidden_layers + 1)),
        "*": Normal(std=c.initializer_range or 0.02),
    }


def rules(spec: Model, position: str) -> list[Rule]:
    theirs = "~encoder.pos_conv_embed.conv"
    return [
        Rename("~feature_extractor.conv_layers.{i}.conv.{p}", f"{STEM}.convolutions.{{i}}.{{p}}"),
        Rename("~feature_extractor.conv_layers.{i}.layer_norm.{p}", f"{STEM}.norms.{{i}}.{{p}}"),
        Rename("~feature_projection.layer_norm.{p}", "embedding.norm.{p}"),
        Rename("~feature_projection.projection.{p}", "embedding.project.{p}"),
        Rename("~masked_spec_embed", f"{AUGMENT}.mask_embedding"),
        Rename(f"{theirs}.bias", f"{position}.bias"),
        Rename(f"{theirs}.parametrizations.weight.original0", f"{position}.scale"),
        Rename(f"{theirs}.parametrizations.weight.original1", f"{position}.weight"),
        Rename("~adapter.proj.{p}", f"{ADAPTER}.project.{{p}}"),
        Rename("~adapter.proj_layer_norm.{p}", f"{ADAPTER}.norm.{{p}}"),
        Rename("~adapter.layers.{i}.conv.{p}", f"{ADAPTER}.convolutions.{{i}}.{{p}}"),
        Rename("layer_weights", "encoder.neck.weight"),
        *head_rules(spec.head),
    ]


def head_rules(head: Any) -> list[Rule]:
    if isinstance(head, ContrastHead):
        q = head.quantizer
        return [
            Reshape("quantizer.codevectors", "head.quantizer.codes", (1, q.groups * q.codes, q.width // q.groups)),
            Rename("quantizer.weight_proj.{p}", "head.quantizer.choose.{p}"),
            Rename("project_hid.{p}", "head.states.{p}"),
            Rename("project_q.{p}", "head.targets.{p}"),
        ]
    if isinstance(head, XVectorHead):
        return [
            Rename("projector.{p}", "head.project.{p}"),
            Rename("tdnn.{i}.kernel.{p}", "head.layers.{i}.{p}"),
            Rename("feature_extractor.{p}", "head.vector.{p}"),
            Rename("classifier.{p}", "head.out.{p}"),
            Rename("objective.weight", "head.speakers"),
        ]
    out = "lm_head" if isinstance(head, CTCHead) else "classifier"
    return [Rename("projector.{p}", "head.pool.dense.{p}"), Rename(f"{out}.{{p}}", "head.out.{p}")]
