from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 128, "pad_token_id": 3,
}  # fmt: skip
CLASSES = (
    "Qwen3ForCausalLM", "Qwen3Model", "Qwen3ForSequenceClassification", "Qwen3ForTokenClassification",
    "Qwen3ForQuestionAnswering",
)  # fmt: skip
WINDOW = {"use_sliding_window": True, "sliding_window": 7}

CASES = [
    *[Case("qwen3", name, {**SMALL, "num_labels": 5}) for name in CLASSES],
    Case(
        "qwen3", "Qwen3ForCausalLM",
        {**SMALL, **WINDOW, "max_window_layers": 1, "tie_word_embeddings": True, "hidden_act": "gelu_new",
         "rms_norm_eps": 1e-3, "num_key_value_heads": 1, "attention_bias": True, "attention_dropout": 0.1,
         "initializer_range": 0.05, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}},
        "odd",
    ),
]  # fmt: skip
