from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 3,
}  # fmt: skip
CLASSES = (
    "Qwen2ForCausalLM", "Qwen2Model", "Qwen2ForSequenceClassification", "Qwen2ForTokenClassification",
    "Qwen2ForQuestionAnswering",
)  # fmt: skip
WINDOW = {"use_sliding_window": True, "sliding_window": 7}

CASES = [
    *[Case("qwen2", name, {**SMALL, "num_labels": 5}) for name in CLASSES],
    Case(
        "qwen2", "Qwen2ForCausalLM",
        {**SMALL, **WINDOW, "max_window_layers": 1, "tie_word_embeddings": True, "hidden_act": "gelu_new",
         "rms_norm_eps": 1e-3, "num_key_value_heads": 1, "attention_dropout": 0.1, "initializer_range": 0.05,
         "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}},
        "window",
    ),
    Case(
        "qwen2", "Qwen2Model",
        {**SMALL, **WINDOW, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}, "types",
    ),
]  # fmt: skip
