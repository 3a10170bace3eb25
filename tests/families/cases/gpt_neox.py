from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 128, "pad_token_id": 3,
}  # fmt: skip
# a quarter of 12 channels: published as two pairs, rotated as if there were three channels
ODD = {
    "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 3, "use_parallel_residual": False,
    "attention_bias": False, "tie_word_embeddings": True, "hidden_act": "gelu_fast", "layer_norm_eps": 1e-3,
    "hidden_dropout": 0.2, "attention_dropout": 0.3, "classifier_dropout": 0.4, "initializer_range": 0.1,
    "rotary_pct": 0.25, "rotary_emb_base": 100, "is_decoder": True, "bos_token_id": 7, "eos_token_id": 8,
}  # fmt: skip
CLASSES = ("GPTNeoXForCausalLM", "GPTNeoXModel", "GPTNeoXForSequenceClassification", "GPTNeoXForTokenClassification",
           "GPTNeoXForQuestionAnswering")  # fmt: skip
ROPES = {
    "linear": {"rope_type": "linear", "factor": 2.5, "partial_rotary_factor": 1.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 100.0,
             "partial_rotary_factor": 0.5},
}  # fmt: skip
STRETCH = "dynamic scaling rotates every token by the length of the longest text so far [published]"

CASES = [
    *[Case("gpt_neox", name, {**SMALL, "num_labels": 2 if "Question" in name else 5}) for name in CLASSES],
    *[Case("gpt_neox", name, {**SMALL, **ODD}, "odd") for name in CLASSES],
    *[Case("gpt_neox", CLASSES[0], {**SMALL, "rope_parameters": rope}, kind) for kind, rope in ROPES.items()],
    Case(
        "gpt_neox", CLASSES[0],
        {**SMALL, "max_position_embeddings": 12, "hidden_act": "relu",
         "rope_parameters": {"rope_type": "dynamic", "factor": 3.0, "partial_rotary_factor": 0.5}}, "dynamic",
        skip=dict.fromkeys(("N1", "N3", "N4", "N7", "G1"), STRETCH),
    ),
]  # fmt: skip
