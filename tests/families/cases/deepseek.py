from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 20, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 10, "q_lora_rank": 13, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6, "v_head_dim": 7, "n_routed_experts": 6, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
    "max_position_embeddings": 128, "pad_token_id": 3,
}  # fmt: skip
V3 = {**SMALL, "kv_lora_rank": 11, "qk_nope_head_dim": 9, "n_group": 3, "topk_group": 2}
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 100.0, "beta_fast": 4.0,
    "mscale": 0.7, "mscale_all_dim": 0.9,
}  # fmt: skip

CASES = [
    *[Case("deepseek_v2", f"DeepseekV2{name}", {**SMALL, "num_labels": 5})
      for name in ("ForCausalLM", "Model", "ForSequenceClassification")],
    *[Case("deepseek_v3", f"DeepseekV3{name}", {**V3, "num_labels": 5})
      for name in ("ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification")],
    Case(
        "deepseek_v2", "DeepseekV2ForCausalLM",
        {**SMALL, "topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2, "n_routed_experts": 9,
         "num_experts_per_tok": 4, "q_lora_rank": None, "mlp_bias": True, "attention_bias": True,
         "routed_scaling_factor": 3.0, "n_shared_experts": 3, "rope_parameters": YARN, "hidden_act": "gelu_new",
         "tie_word_embeddings": True, "rms_norm_eps": 1e-3, "first_k_dense_replace": 0, "attention_dropout": 0.1,
         "initializer_range": 0.05},
        "odd",
    ),
    Case(
        "deepseek_v3", "DeepseekV3ForCausalLM",
        {**V3, "rope_interleave": False, "norm_topk_prob": False, "attention_bias": True, "q_lora_rank": None,
         "routed_scaling_factor": 0.7, "n_shared_experts": 2, "rope_parameters": YARN, "hidden_act": "relu",
         "tie_word_embeddings": True, "rms_norm_eps": 1e-3, "first_k_dense_replace": 2, "topk_group": 1,
         "attention_dropout": 0.1, "num_mtp_layers": 0, "output_router_logits": True, "initializer_range": 0.05},
        "odd",
    ),
    Case("deepseek_v3", "DeepseekV3Model", {**V3, "n_group": 1, "topk_group": 1, "rope_parameters": YARN}, "yarn"),
]  # fmt: skip
