from catalogue import Case

SMALL = {
    "vocab_size": 99, "num_mel_bins": 8, "d_model": 32, "encoder_layers": 2, "encoder_ffn_dim": 48,
    "encoder_attention_heads": 4, "decoder_layers": 2, "decoder_ffn_dim": 40, "decoder_attention_heads": 2,
    "max_source_positions": 18, "max_target_positions": 64, "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1,
    "decoder_start_token_id": 2, "begin_suppress_tokens": None, "classifier_proj_size": 14, "num_labels": 5,
}  # fmt: skip
ODD = {
    "d_model": 36, "num_mel_bins": 5, "encoder_attention_heads": 3, "decoder_attention_heads": 9, "encoder_layers": 3,
    "decoder_layers": 1, "init_std": 0.1, "activation_function": "swish", "encoder_layerdrop": 0.3,
    "decoder_layerdrop": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.2, "dropout": 0.3,
    "max_source_positions": 16, "max_target_positions": 130, "pad_token_id": 3, "decoder_start_token_id": 1,
    "tie_word_embeddings": False, "apply_spec_augment": True, "mask_time_prob": 0.3, "mask_time_length": 2,
    "mask_time_min_masks": 1, "mask_feature_prob": 0.2, "mask_feature_length": 2, "mask_feature_min_masks": 1,
    "use_weighted_layer_sum": True, "classifier_proj_size": 9,
}  # fmt: skip
CLASSES = ("WhisperForConditionalGeneration", "WhisperModel", "WhisperForAudioClassification")
SKIP = {"N7": "a spectrogram is one recording: nothing can be packed"}


def case(architecture: str, config: dict, name: str = "") -> Case:
    config = {**SMALL, **config}
    shape = (config["num_mel_bins"], 2 * config["max_source_positions"])
    return Case("whisper", architecture, config, name, {"input_features": shape}, SKIP)


CASES = [*[case(name, {}) for name in CLASSES], *[case(name, ODD, "odd") for name in CLASSES]]
