"""What the speech models that read waveforms share: wav2vec 2.0's stem, its augmentation, and their published names."""

from __future__ import annotations

from typing import Any

from anyformer.families.family import ConfigField, Field, Inert, activation_at
from anyformer.part import Part
from anyformer.parts.activation import activation_named
from anyformer.parts.audio import ConvolutionStem, SpecAugment, WaveformEmbedding
from anyformer.parts.init import Initializer, Kaiming, Normal, Uniform, Value
from anyformer.parts.norm import LayerNorm
from anyformer.weights.rules import Rename, Rule

STEM, AUGMENT = "embedding.stem", "embedding.augment"
PRETRAINING, XVECTOR = "belongs to the ForPreTraining class alone", "belongs to the ForXVector class alone"

FIELDS: dict[str, ConfigField] = {
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
    "mask_time_prob": Field(0.05, f"{AUGMENT}.time"),
    "mask_time_length": Field(10, f"{AUGMENT}.time_span"),
    "mask_time_min_masks": Field(2, f"{AUGMENT}.time_least"),
    "mask_feature_prob": Field(0.0, f"{AUGMENT}.channels"),
    "mask_feature_length": Field(10, f"{AUGMENT}.channel_span"),
    "mask_feature_min_masks": Field(0, f"{AUGMENT}.channel_least"),
    "vocab_size": Field(None, "head.vocab_size"),
    "final_dropout": Field(0.1, "head.dropout"),
    "ctc_loss_reduction": Field("sum", "head.reduction"),
    "ctc_zero_infinity": Field(False, "head.zero_infinity"),
    "pad_token_id": Field(0, "head.blank"),
    "classifier_proj_size": Field(256, "head.pool.width"),
    "bos_token_id": Inert(1, "used by tokenizers"),
    "eos_token_id": Inert(2, "used by tokenizers"),
    "feat_quantizer_dropout": Inert(0.0, PRETRAINING),
    "num_codevectors_per_group": Inert(320, PRETRAINING),
    "num_codevector_groups": Inert(2, PRETRAINING),
    "contrastive_logits_temperature": Inert(0.1, PRETRAINING),
    "num_negatives": Inert(100, PRETRAINING),
    "codevector_dim": Inert(256, PRETRAINING),
    "proj_codevector_dim": Inert(256, PRETRAINING),
    "diversity_loss_weight": Inert(0.1, PRETRAINING),
    "tdnn_dim": Inert((512, 512, 512, 512, 1500), XVECTOR),
    "tdnn_kernel": Inert((5, 3, 3, 1, 1), XVECTOR),
    "tdnn_dilation": Inert((1, 2, 3, 1, 1), XVECTOR),
    "xvector_output_dim": Inert(512, XVECTOR),
}

# checkpoints from before weight normalisation became a parametrisation
LEGACY = {
    "conv.weight_g": "conv.parametrizations.weight.original0",
    "conv.weight_v": "conv.parametrizations.weight.original1",
}


def waveform(c: Any, position: Part | None) -> WaveformEmbedding:
    if c.num_feat_extract_layers not in (None, len(c.conv_dim)):
        raise ValueError(f"num_feat_extract_layers is {c.num_feat_extract_layers}, conv_dim has {len(c.conv_dim)}")
    stem = ConvolutionStem(
        widths=c.conv_dim, kernels=c.conv_kernel, strides=c.conv_stride, bias=c.conv_bias, norm=c.feat_extract_norm,
        activation=activation_named(c.feat_extract_activation),
    )  # fmt: skip
    augment = SpecAugment(
        time=c.mask_time_prob, time_span=c.mask_time_length, time_least=c.mask_time_min_masks,
        channels=c.mask_feature_prob, channel_span=c.mask_feature_length, channel_least=c.mask_feature_min_masks,
        active=c.apply_spec_augment,
    )  # fmt: skip
    return WaveformEmbedding(
        stem=stem, norm=LayerNorm(eps=c.layer_norm_eps), projection_dropout=c.feat_proj_dropout, augment=augment,
        position=position, dropout=c.hidden_dropout,
    )  # fmt: skip


def around(inputs: int) -> Uniform:
    """What torch gives a layer with so many inputs."""
    return Uniform(low=-(inputs**-0.5), high=inputs**-0.5)


def init(c: Any, position: str) -> dict[str, Initializer]:
    inputs = [before * kernel for before, kernel in zip((1, *c.conv_dim), c.conv_kernel, strict=False)]
    return {
        **{f"{STEM}.convolutions.{i}.bias": around(n) for i, n in enumerate(inputs)},
        f"{STEM}.convolutions.*.weight": Kaiming(),
        f"{STEM}.norms.*.weight": Value(value=1.0),
        "embedding.project.*": around(c.conv_dim[-1]),
        f"{AUGMENT}.mask_embedding": Uniform(low=0.0, high=1.0),
        f"{position}.weight": Normal(std=2 * (c.num_conv_pos_embeddings * c.hidden_size) ** -0.5),
    }


def rules(position: str) -> list[Rule]:
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
    ]
