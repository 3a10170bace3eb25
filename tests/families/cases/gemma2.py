from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 128, "pad_token_id": 3, "sliding_window": 7,
    "query_pre_attn_scalar": 12, "attn_logit_softcapping": 0.8, "final_logit_softcapping": 1.5,
}  # fmt: skip
CLASSES = ("Gemma2ForCausalLM", "Gemma2Model", "Gemma2ForSequenceClassification", "Gemma2ForTokenClassification")

CASES = [
    *[Case("gemma2", name, {**SMALL, "num_labels": 5}) for name in CLASSES],
    Case(
        "gemma2", "Gemma2ForCausalLM",
        {**SMALL, "attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True,
         "tie_word_embeddings": False, "hidden_activation": "relu", "rms_norm_eps": 1e-3, "num_key_value_heads": 1,
         "attention_dropout": 0.1, "initializer_range": 0.05, "use_bidirectional_attention": True,
         "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
         "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}},
        "odd",
    ),
]  # fmt: skip
