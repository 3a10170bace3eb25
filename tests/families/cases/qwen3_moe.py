from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 3, "num_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 20,
}  # fmt: skip
CLASSES = (
    "Qwen3MoeForCausalLM", "Qwen3MoeModel", "Qwen3MoeForSequenceClassification", "Qwen3MoeForTokenClassification",
    "Qwen3MoeForQuestionAnswering",
)  # fmt: skip

CASES = [
    *[Case("qwen3_moe", name, {**SMALL, "num_labels": 5}) for name in CLASSES],
    Case(
        "qwen3_moe", "Qwen3MoeForCausalLM",
        {**SMALL, "num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [1], "head_dim": 12,
         "norm_topk_prob": True, "num_experts": 3, "num_experts_per_tok": 3, "tie_word_embeddings": True,
         "hidden_act": "gelu_new", "rms_norm_eps": 1e-3, "num_key_value_heads": 1, "attention_bias": True,
         "output_router_logits": True, "router_aux_loss_coef": 0.3, "attention_dropout": 0.1,
         "initializer_range": 0.05, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}},
        "odd",
    ),
    Case(
        "qwen3_moe", "Qwen3MoeModel",
        {**SMALL, "use_sliding_window": True, "sliding_window": 7, "mlp_only_layers": [0], "norm_topk_prob": True},
        "window",
    ),
]  # fmt: skip
