from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
    "max_position_embeddings": 128, "pad_token_id": 3,
}  # fmt: skip
# like the 350M model, with every other option changed too
POST = {
    "hidden_size": 30, "num_attention_heads": 3, "word_embed_proj_dim": 11, "do_layer_norm_before": False,
    "layerdrop": 0.3, "dropout": 0.2, "attention_dropout": 0.3, "init_std": 0.1, "activation_function": "gelu",
}  # fmt: skip
BARE = {
    "enable_bias": False, "layer_norm_elementwise_affine": False, "tie_word_embeddings": False,
    "word_embed_proj_dim": 40, "activation_function": "swish", "pad_token_id": None,
}  # fmt: skip
CLASSES = ("OPTForCausalLM", "OPTModel", "OPTForSequenceClassification", "OPTForQuestionAnswering")

CASES = [
    *[Case("opt", name, {**SMALL, "num_labels": 5 if "Sequence" in name else 2}) for name in CLASSES],
    *[Case("opt", name, {**SMALL, **POST}, "post") for name in CLASSES],
    Case("opt", "OPTForCausalLM", {**SMALL, **BARE}, "bare"),
    Case("opt", "OPTForCausalLM", {**SMALL, "_remove_final_layer_norm": True, "num_hidden_layers": 3}, "no-last-norm"),
    Case("opt", "OPTForSequenceClassification", {**SMALL, "num_labels": 1}, "regression"),
]
