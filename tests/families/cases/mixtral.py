from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 3, "num_local_experts": 5,
}  # fmt: skip
CLASSES = ("MixtralForCausalLM", "MixtralModel", "MixtralForSequenceClassification", "MixtralForTokenClassification")

CASES = [
    *[Case("mixtral", name, {**SMALL, "num_labels": 5}) for name in CLASSES],
    Case("mixtral", "MixtralForQuestionAnswering", {**SMALL, "num_experts_per_tok": 1}),
    Case(
        "mixtral", "MixtralForCausalLM",
        {**SMALL, "head_dim": 10, "tie_word_embeddings": True, "hidden_act": "gelu_new", "rms_norm_eps": 1e-3,
         "num_key_value_heads": 1, "num_experts_per_tok": 3, "num_local_experts": 3, "output_router_logits": True,
         "router_aux_loss_coef": 0.3, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0},
         "router_jitter_noise": 0.1, "attention_dropout": 0.1, "initializer_range": 0.05},
        "odd",
    ),
    Case("mixtral", "MixtralForCausalLM", {**SMALL, "sliding_window": 7, "num_local_experts": 16}, "window"),
    Case("mixtral", "MixtralModel", {**SMALL, "output_router_logits": True, "num_hidden_layers": 3}, "logits"),
]  # fmt: skip
