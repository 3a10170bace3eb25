from catalogue import Case

SMALL = {
    "vocab_size": 23, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "conv_dim": [12, 16, 24], "conv_stride": [5, 2, 2], "conv_kernel": [10, 3, 2], "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4, "mask_time_length": 3, "num_labels": 5, "classifier_proj_size": 14,
    "ctc_zero_infinity": True, "num_codevectors_per_group": 6, "num_codevector_groups": 2, "codevector_dim": 12,
    "proj_codevector_dim": 10, "num_negatives": 5, "tdnn_dim": [12, 10, 14], "tdnn_kernel": [3, 2, 1],
    "tdnn_dilation": [1, 3, 1], "xvector_output_dim": 11,
}  # fmt: skip
STABLE = {
    "do_stable_layer_norm": True, "feat_extract_norm": "layer", "feat_extract_activation": "relu", "conv_bias": True,
    "conv_dim": [10, 14, 18, 22], "conv_stride": [4, 3, 1, 2], "conv_kernel": [7, 5, 2, 1], "hidden_act": "swish",
    "layer_norm_eps": 1e-3, "num_conv_pos_embeddings": 5, "num_conv_pos_embedding_groups": 2, "hidden_dropout": 0.2,
    "attention_dropout": 0.15, "activation_dropout": 0.05, "feat_proj_dropout": 0.3, "final_dropout": 0.25,
    "layerdrop": 0.35, "mask_time_prob": 0.3, "mask_time_length": 2, "mask_time_min_masks": 1, "mask_feature_prob": 0.2,
    "mask_feature_length": 4, "mask_feature_min_masks": 1, "ctc_loss_reduction": "mean", "pad_token_id": 4,
    "initializer_range": 0.05, "adapter_attn_dim": 7, "num_codevectors_per_group": 9, "num_codevector_groups": 3,
    "feat_quantizer_dropout": 0.1, "contrastive_logits_temperature": 0.3, "diversity_loss_weight": 0.4,
    "use_weighted_layer_sum": True, "tdnn_dilation": [2, 1, 1],
}  # fmt: skip
ADAPTER = {"add_adapter": True, "adapter_kernel_size": 3, "adapter_stride": 2, "num_adapter_layers": 2}
KINDS = ("Model", "ForCTC", "ForSequenceClassification", "ForAudioFrameClassification", "ForXVector", "ForPreTraining")
N4 = "the published group norm includes padding"
VOICE = "the published dilated layers read padding next to the last frames"
PACKED = {"N7": "a waveform is one recording: nothing can be packed"}


def case(kind: str, config: dict, name: str = "") -> Case:
    config = {**SMALL, **config}
    padded = N4 if config.get("feat_extract_norm") != "layer" else VOICE if kind == "ForXVector" else ""
    skip = {**PACKED, **({"N4": padded} if padded else {})}
    return Case("wav2vec2", f"Wav2Vec2{kind}", config, name, {"input_values": (613,)}, skip)


CASES = [
    *[case(kind, {}) for kind in KINDS],
    *[case(kind, STABLE, "stable") for kind in KINDS],
    case("ForXVector", {"use_weighted_layer_sum": True}, "mixed"),
    case("Model", {**ADAPTER, "output_hidden_size": 20}, "adapter"),
    case("ForCTC", {**STABLE, **ADAPTER, "adapter_kernel_size": 2, "mask_time_prob": 0.0}, "adapter"),
]
