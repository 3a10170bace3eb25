from catalogue import Case

SMALL = {
    "vocab_size": 23, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "conv_dim": [12, 16, 24], "conv_stride": [5, 2, 2], "conv_kernel": [10, 3, 2], "conv_depthwise_kernel_size": 7,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "mask_time_length": 3, "num_labels": 5,
    "classifier_proj_size": 14, "ctc_zero_infinity": True, "num_codevectors_per_group": 6, "num_codevector_groups": 2,
    "codevector_dim": 12, "proj_codevector_dim": 10, "num_negatives": 5, "tdnn_dim": [12, 10, 14],
    "tdnn_kernel": [3, 2, 1], "tdnn_dilation": [1, 3, 1], "xvector_output_dim": 11,
}  # fmt: skip
ODD = {
    "feat_extract_norm": "layer", "feat_extract_activation": "relu", "conv_bias": True, "conv_dim": [10, 14, 18, 22],
    "conv_stride": [4, 3, 1, 2], "conv_kernel": [7, 5, 2, 1], "hidden_act": "swish", "layer_norm_eps": 1e-3,
    "position_embeddings_type": "rotary", "rotary_embedding_base": 77, "num_conv_pos_embeddings": 5,
    "num_conv_pos_embedding_groups": 2, "hidden_dropout": 0.2, "attention_dropout": 0.15, "activation_dropout": 0.05,
    "feat_proj_dropout": 0.3, "final_dropout": 0.25, "layerdrop": 0.35, "conformer_conv_dropout": 0.12,
    "mask_time_prob": 0.3, "mask_time_length": 2, "mask_time_min_masks": 1, "mask_feature_prob": 0.2,
    "mask_feature_length": 4, "mask_feature_min_masks": 1, "ctc_loss_reduction": "mean", "ctc_zero_infinity": False,
    "pad_token_id": 4, "initializer_range": 0.05,
}  # fmt: skip
MIXED = {"use_weighted_layer_sum": True, "position_embeddings_type": "rotary"}
LOCAL = {"feat_extract_norm": "layer", "conv_depthwise_kernel_size": 1}
ADAPTER = {"add_adapter": True, "adapter_kernel_size": 3, "adapter_stride": 2, "num_adapter_layers": 2}
CLASSES = ("Wav2Vec2ConformerModel", "Wav2Vec2ConformerForCTC", "Wav2Vec2ConformerForSequenceClassification",
           "Wav2Vec2ConformerForAudioFrameClassification", "Wav2Vec2ConformerForXVector")  # fmt: skip
N4 = "the published depthwise convolution reads padding next to the last frames, and the group norm includes it"
PACKED = {"N7": "a waveform is one recording: nothing can be packed"}
SKIP = {"N4": N4, **PACKED}
KINDS = ("relative", "rotary", None)


def case(architecture: str, config: dict, name: str = "", skip: dict = SKIP) -> Case:
    return Case("wav2vec2-conformer", architecture, {**SMALL, **config}, name, {"input_values": (613,)}, skip)


CASES = [
    *[case(name, {}) for name in CLASSES],
    case("Wav2Vec2ConformerForPreTraining", {}),
    case(CLASSES[0], ODD, "odd"),
    case(CLASSES[1], ODD, "odd", {**SKIP, "N5": "without a frame no alignment exists, and CTC's loss is infinite"}),
    *[case(name, MIXED, "mixed") for name in CLASSES[2:]],
    # a kernel of one frame and a norm of one frame: padding cannot reach other frames
    *[case(CLASSES[1], {**LOCAL, "position_embeddings_type": kind}, f"{kind}-local", PACKED) for kind in KINDS],
    case(CLASSES[2], LOCAL, "local", PACKED),
    case(CLASSES[0], {**ADAPTER, "output_hidden_size": 20, "position_embeddings_type": None}, "adapter"),
    case(CLASSES[1], {**ADAPTER, "adapter_kernel_size": 2, "mask_time_prob": 0.0}, "adapter"),
    case(CLASSES[1], {"apply_spec_augment": False, "mask_feature_prob": 0.1}, "unmasked"),
]  # fmt: skip
