from catalogue import Case

TEXT = {
    "model_type": "llama", "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 3,
}  # fmt: skip
IMAGE = {
    "model_type": "clip_vision_model", "hidden_size": 20, "intermediate_size": 36, "num_hidden_layers": 3,
    "num_attention_heads": 2, "image_size": 8, "patch_size": 8, "projection_dim": 10,
}  # fmt: skip
CONFIG = {"text_config": TEXT, "vision_config": IMAGE, "image_token_index": 4}
ODD = {
    "text_config": {**TEXT, "attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-3, "head_dim": 10},
    "vision_config": {**IMAGE, "num_channels": 1, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
    "image_token_index": 4, "vision_feature_layer": [-1, 1], "vision_feature_select_strategy": "full",
    "projector_hidden_act": "relu", "multimodal_projector_bias": False,
}  # fmt: skip
# one patch, and the class token if all tokens are read: the shortest prompts have three tokens (more in test_llava.py)
PICTURE = {"input_ids": {1: 4}, "pixel_values": (3, 8, 8)}
GREY = {"input_ids": {0: 4, 1: 4}, "pixel_values": (1, 8, 8)}

CASES = [
    Case("llava", "LlavaForConditionalGeneration", CONFIG, inputs=PICTURE),
    Case("llava", "LlavaForConditionalGeneration", ODD, "odd", inputs=GREY),
    Case("llava", "LlavaModel", CONFIG, inputs=PICTURE),
]
