from catalogue import Case

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "conv_kernel_size": 5, "subsampling_factor": 4, "subsampling_conv_channels": 6, "num_mel_bins": 12,
}  # fmt: skip
ODD = {
    **SMALL, "num_hidden_layers": 3, "num_attention_heads": 2, "hidden_act": "gelu", "attention_bias": False,
    "convolution_bias": False, "conv_kernel_size": 9, "subsampling_factor": 8, "subsampling_conv_kernel_size": 5,
    "num_mel_bins": 16, "scale_input": False, "dropout": 0.2, "layerdrop": 0.3, "activation_dropout": 0.05,
    "attention_dropout": 0.15, "initializer_range": 0.05, "max_position_embeddings": 77,
}  # fmt: skip
TOP = {"vocab_size": 23, "pad_token_id": 0}
SKIP = {"N7": "a spectrogram is one recording: nothing can be packed"}
ALIGNED = {**SKIP, "N5": "without a frame no alignment exists, and CTC's loss is infinite"}


def case(architecture: str, config: dict, name: str = "", skip: dict = SKIP, **top: object) -> Case:
    # the published extractor sets padding to zero, and the published class spreads every frame over it
    inputs = {"input_features": (61, config["num_mel_bins"]), "silent": True}
    if architecture == "ParakeetEncoder":
        return Case("parakeet_encoder", architecture, config, name, inputs, skip)
    return Case("parakeet_ctc", architecture, {**TOP, "encoder_config": config, **top}, name, inputs, skip)


CASES = [
    case("ParakeetForCTC", SMALL),
    case("ParakeetForCTC", ODD, "odd", ALIGNED, pad_token_id=22, ctc_loss_reduction="sum", ctc_zero_infinity=False),
    case("ParakeetEncoder", SMALL),
    case("ParakeetEncoder", ODD, "odd"),
]
