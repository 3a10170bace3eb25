from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 3,
}  # fmt: skip
CLASSES = ("LlamaForCausalLM", "LlamaModel", "LlamaForSequenceClassification", "LlamaForTokenClassification",
           "LlamaForQuestionAnswering")  # fmt: skip
ROPES = {
    "linear": {"rope_type": "linear", "factor": 2.5, "rope_theta": 100.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 100.0,
             "beta_fast": 4.0, "mscale": 0.7, "mscale_all_dim": 0.5, "truncate": False},
    "llama3": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8, "rope_theta": 50.0},
}  # fmt: skip
STRETCH = "dynamic scaling rotates every token by the length of the longest text so far [published]"

CASES = [
    *[Case("llama", name, {**SMALL, "num_labels": 5}) for name in CLASSES],
    *[Case("llama", "LlamaForCausalLM", {**SMALL, "rope_parameters": rope}, kind) for kind, rope in ROPES.items()],
    Case(
        "llama", "LlamaForCausalLM",
        {**SMALL, "max_position_embeddings": 12, "rope_parameters": {"rope_type": "dynamic", "factor": 3.0}}, "dynamic",
        skip=dict.fromkeys(("N1", "N3", "N4", "N7", "G1"), STRETCH),
    ),
    Case(
        "llama", "LlamaForCausalLM",
        {**SMALL, "head_dim": 10, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
         "hidden_act": "gelu_new", "rms_norm_eps": 1e-3, "num_key_value_heads": 1}, "odd",
    ),
]  # fmt: skip
