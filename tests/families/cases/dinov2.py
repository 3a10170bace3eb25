from catalogue import Case

from cases import vit

SMALL = {
    "image_size": 32, "patch_size": 8, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
    "mlp_ratio": 2, "num_labels": 5,
}  # fmt: skip
# an image whose last pixels are not read, heads that do not divide the width, positions resized to 5 x 3
ODD = {
    "image_size": 29, "patch_size": 7, "num_channels": 2, "hidden_size": 22, "num_hidden_layers": 2,
    "num_attention_heads": 4, "mlp_ratio": 3, "qkv_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3,
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2, "drop_path_rate": 0.3, "initializer_range": 0.05,
    "layerscale_value": 0.4, "num_labels": 7,
}  # fmt: skip
WIDE = {"pixel_values": (2, 37, 26)}


def case(architecture: str, config: dict, name: str = "", **more) -> Case:
    return Case("dinov2", architecture, config, name, skip=vit.SKIP, **more)


BACKBONE = {**SMALL, "out_features": ["stem", "stage2", "stage3"]}

CASES = [
    case("Dinov2Backbone", BACKBONE),
    case("Dinov2Backbone", {**ODD, "out_indices": [1, -1], "apply_layernorm": False, "reshape_hidden_states": False},
         "odd", inputs=WIDE),
    case("Dinov2ForImageClassification", SMALL),
    case("Dinov2Model", SMALL),
    case("Dinov2ForImageClassification", {**ODD, "use_mask_token": False}, "odd", inputs=WIDE),
    case("Dinov2Model", {**ODD, "use_swiglu_ffn": True}, "odd", inputs=WIDE),
    case("Dinov2Model", {**SMALL, "use_swiglu_ffn": True, "patch_size": [4, 8], "image_size": [16, 32]}, "gated",
         inputs={"pixel_values": (3, 20, 32)}),
]  # fmt: skip
