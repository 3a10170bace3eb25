from catalogue import Case

SMALL = {
    "image_size": 32, "embed_dim": 12, "depths": [2, 3], "num_heads": [2, 4], "window_size": 3, "num_labels": 5,
    "encoder_stride": 8,
}  # fmt: skip
# grids of 11 x 6, 6 x 3, 3 x 2: odd grids, grids that windows do not fit, a grid no larger than a window
ODD = {
    "image_size": [64, 22], "patch_size": [6, 4], "num_channels": 2, "embed_dim": 10, "depths": [2, 1, 2],
    "num_heads": [5, 2, 4], "window_size": 2, "mlp_ratio": 2.37, "qkv_bias": False, "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.2, "drop_path_rate": 0.3, "hidden_act": "relu", "layer_norm_eps": 1e-3,
    "initializer_range": 0.05, "num_labels": 7,
}  # fmt: skip
ONE = {"depths": [3], "num_heads": [3]}
WIDE = {"pixel_values": (2, 61, 23)}
NO_MASK = "the published classes take no mask of pixels or patches"
SKIP = {"N4": NO_MASK, "N5": NO_MASK, "N7": "one row is one image: nothing can be packed"}


def case(architecture: str, config: dict, name: str = "", **more) -> Case:
    return Case("swin", architecture, config, name, skip=SKIP, **more)


CASES = [
    case("SwinForImageClassification", SMALL),
    case("SwinModel", SMALL),
    case("SwinForMaskedImageModeling", SMALL),
    case("SwinForImageClassification", ODD, "odd", inputs=WIDE),
    case("SwinModel", ODD, "odd", inputs=WIDE),
    case("SwinModel", {**SMALL, "use_absolute_embeddings": True, "window_size": 2}, "absolute"),
    case(
        "SwinForMaskedImageModeling",
        {**SMALL, "use_absolute_embeddings": True, "depths": [1, 2, 1], "num_heads": [2, 3, 6], "encoder_stride": 16,
         "num_channels": 1, "window_size": 2, "hidden_act": "gelu_new"},
        "absolute", inputs={"pixel_values": (1, 32, 32)},
    ),
    case("SwinForImageClassification", {**SMALL, **ONE, "window_size": 1}, "single"),
    case("SwinForImageClassification", {**SMALL, **ONE, "window_size": 8, "num_labels": 1}, "window"),
]  # fmt: skip
