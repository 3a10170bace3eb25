from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 3,
}  # fmt: skip
CLASSES = ("Olmo2ForCausalLM", "Olmo2Model", "Olmo2ForSequenceClassification")

CASES = [
    *[Case("olmo2", name, {**SMALL, "num_labels": 5}) for name in CLASSES],
    Case(
        "olmo2", "Olmo2ForCausalLM",
        {**SMALL, "head_dim": 10, "attention_bias": True, "tie_word_embeddings": True, "hidden_act": "gelu_new",
         "rms_norm_eps": 1e-3, "num_key_value_heads": 1, "attention_dropout": 0.1, "initializer_range": 0.05,
         "rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 100.0}},
        "odd",
    ),
]  # fmt: skip
