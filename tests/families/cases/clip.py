from catalogue import Case

TEXT = {
    "vocab_size": 60, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "projection_dim": 10, "eos_token_id": 4,
}  # fmt: skip
IMAGE = {
    "hidden_size": 20, "intermediate_size": 36, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 8, "projection_dim": 10,
}  # fmt: skip
ODD_TEXT = {
    **TEXT, "eos_token_id": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-3, "attention_dropout": 0.1,
    "initializer_factor": 0.5, "initializer_range": 0.1, "projection_dim": 7,
}  # fmt: skip
ODD_IMAGE = {
    **IMAGE, "image_size": 30, "patch_size": 7, "num_channels": 1, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3,
    "attention_dropout": 0.2, "initializer_factor": 2.0, "initializer_range": 0.1, "projection_dim": 12,
}  # fmt: skip
BOTH = {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 14}
ODD = {
    "text_config": ODD_TEXT, "vision_config": ODD_IMAGE, "projection_dim": 9, "logit_scale_init_value": 1.5,
    "initializer_factor": 0.7, "num_labels": 3,
}  # fmt: skip

ENDS = {"input_ids": {11: 4, 14: 4}}  # the first one represents the text
GREY = {"pixel_values": (1, 30, 30)}
MASKLESS = {"attention_mask": None}
WHOLE = "an image has no padding, and the published class takes no mask of patches"
PACKED = {"N7": "one vector represents a row, so packed texts would share it"}
IMAGES = {"N4": WHOLE, "N5": WHOLE, "N7": "one row is one image: nothing can be packed"}
OLD = {**BOTH, "text_config": {"vocab_size": 7}, "text_config_dict": TEXT, "vision_config_dict": IMAGE}

CASES = [
    Case("clip", "CLIPModel", BOTH, inputs=ENDS, skip=PACKED),
    Case("clip", "CLIPModel", ODD, "odd", inputs=GREY, skip=PACKED),
    Case("clip", "CLIPModel", OLD, "old", inputs=ENDS, skip=PACKED),
    Case("clip", "CLIPForImageClassification", ODD, inputs={**GREY, **MASKLESS}, skip=IMAGES),
    Case("clip_text_model", "CLIPTextModel", TEXT, inputs=ENDS, skip=PACKED),
    Case("clip_text_model", "CLIPTextModelWithProjection", ODD_TEXT, skip=PACKED),
    Case("clip_vision_model", "CLIPVisionModel", IMAGE, inputs=MASKLESS, skip=IMAGES),
    Case("clip_vision_model", "CLIPVisionModelWithProjection", ODD_IMAGE, inputs={**GREY, **MASKLESS}, skip=IMAGES),
]
