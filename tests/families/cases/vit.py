from catalogue import Case

SMALL = {
    "image_size": 32, "patch_size": 8, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 40, "encoder_stride": 8, "num_labels": 5,
}  # fmt: skip
# a grid of 5 x 3 whose last pixels are not read, and heads that do not divide the width
ODD = {
    "image_size": [22, 26], "patch_size": [4, 7], "num_channels": 2, "hidden_size": 22, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 30, "qkv_bias": False, "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2, "layer_norm_eps": 1e-3, "initializer_range": 0.05,
    "pooler_output_size": 9, "pooler_act": "relu", "num_labels": 7,
}  # fmt: skip
WIDE = {"pixel_values": (2, 22, 26)}
WHOLE = "an image has no padding: a mask hides real patches, which test_vit.py compares with the published class"
SKIP = {"N4": WHOLE, "N5": WHOLE, "N7": "one row is one image: nothing can be packed"}


def case(architecture: str, config: dict, name: str = "", **more) -> Case:
    return Case("vit", architecture, config, name, skip=SKIP, **more)


CASES = [
    case("ViTForImageClassification", SMALL),
    case("ViTModel", SMALL),
    case("ViTForMaskedImageModeling", SMALL),
    case("ViTForImageClassification", ODD, "odd", inputs=WIDE),
    case("ViTModel", ODD, "odd", inputs=WIDE),
    case("ViTModel", {**SMALL, "head_dim": 10, "tie_last_hidden_states": True}, "tied"),
    case("ViTForMaskedImageModeling", {**SMALL, "num_channels": 1, "hidden_act": "relu"}, "grey",
         inputs={"pixel_values": (1, 32, 32)}),
]  # fmt: skip
