from catalogue import Case

SMALL = {"vocab_size": 99, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "num_labels": 5}
ODD = {
    "n_inner": 40, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-3, "scale_attn_weights": False,
    "scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True,
}  # fmt: skip
PADS = {"N4": "published: the mean includes padding"}

CASES = [
    Case("imagegpt", "ImageGPTForCausalImageModeling", SMALL),
    Case("imagegpt", "ImageGPTForCausalImageModeling", {**SMALL, "tie_word_embeddings": True}, "tied"),
    Case("imagegpt", "ImageGPTModel", {**SMALL, **ODD}),
    Case("imagegpt", "ImageGPTForImageClassification", SMALL, skip=PADS),
]
