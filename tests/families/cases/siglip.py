from catalogue import Case

TEXT = {
    "vocab_size": 60, "hidden_size": 20, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
IMAGE = {
    "hidden_size": 20, "intermediate_size": 36, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
ODD_TEXT = {
    **TEXT, "hidden_size": 24, "projection_size": 20, "pad_token_id": 3, "hidden_act": "gelu", "layer_norm_eps": 1e-3,
    "attention_dropout": 0.1,
}  # fmt: skip
ODD_IMAGE = {
    **IMAGE, "image_size": 30, "patch_size": 7, "num_channels": 1, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3,
    "attention_dropout": 0.2,
}  # fmt: skip
BOTH = {"text_config": TEXT, "vision_config": IMAGE}
ODD = {"text_config": ODD_TEXT, "vision_config": ODD_IMAGE, "initializer_factor": 0.7, "num_labels": 3}

GREY = {"pixel_values": (1, 30, 30)}
MASKLESS = {"attention_mask": None}
WHOLE = "an image has no padding, and the published class takes no mask of patches"
LAST = "the vector at the last index represents a text, padding included"
TEXTS = {"N4": LAST, "N7": "one vector represents a row, so packed texts would share it"}
IMAGES = {"N4": WHOLE, "N5": WHOLE, "N7": "one row is one image: nothing can be packed"}
NO_HEAD = {**ODD_IMAGE, "vision_use_head": False}

CASES = [
    Case("siglip", "SiglipModel", BOTH, skip=TEXTS),
    Case("siglip", "SiglipModel", ODD, "odd", inputs=GREY, skip=TEXTS),
    Case("siglip", "SiglipForImageClassification", ODD, inputs={**GREY, **MASKLESS}, skip=IMAGES),
    Case("siglip", "SiglipForImageClassification", {**ODD, "vision_config": NO_HEAD}, "headless",
         inputs={**GREY, **MASKLESS}, skip=IMAGES),
    Case("siglip_text_model", "SiglipTextModel", ODD_TEXT, skip=TEXTS),
    Case("siglip_vision_model", "SiglipVisionModel", IMAGE, inputs=MASKLESS, skip=IMAGES),
    Case("siglip_vision_model", "SiglipVisionModel", NO_HEAD, "headless", inputs={**GREY, **MASKLESS}, skip=IMAGES),
]  # fmt: skip
