from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 128, "pad_token_id": 3,
    "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 7,
}  # fmt: skip
CLASSES = ("GptOssForCausalLM", "GptOssModel", "GptOssForSequenceClassification", "GptOssForTokenClassification")
SINKS = {"I2": "a sink takes a part of each row's weight [published]"}

CASES = [
    *[Case("gpt_oss", name, {**SMALL, "num_labels": 5}, skip=SINKS) for name in CLASSES],
    Case(
        "gpt_oss", "GptOssForCausalLM",
        {**SMALL, "num_hidden_layers": 3, "tie_word_embeddings": True, "rms_norm_eps": 1e-3, "attention_bias": False,
         "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "num_key_value_heads": 1,
         "num_local_experts": 3, "num_experts_per_tok": 3, "swiglu_limit": 0.3, "swiglu_alpha": 1.1,
         "output_router_logits": True, "router_aux_loss_coef": 0.3, "attention_dropout": 0.1,
         "initializer_range": 0.05, "sliding_window": 5,
         "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}},
        "odd", skip=SINKS,
    ),
    Case("gpt_oss", "GptOssModel", {**SMALL, "layer_types": ["full_attention"] * 2}, "full", skip=SINKS),
]  # fmt: skip
