from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 5, "num_attention_heads": 4,
    "max_position_embeddings": 128, "pad_token_id": 3, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
    "sep_token_id": 2, "local_attention": 14,
}  # fmt: skip
CLASSES = ("ModernBertForMaskedLM", "ModernBertModel", "ModernBertForSequenceClassification",
           "ModernBertForTokenClassification", "ModernBertForMultipleChoice")  # fmt: skip
ODD = {
    **SMALL, "attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True,
    "hidden_activation": "relu", "classifier_activation": "silu", "norm_eps": 1e-3, "classifier_pooling": "mean",
    "initializer_range": 0.05, "initializer_cutoff_factor": 1.5, "classifier_dropout": 0.1, "mlp_dropout": 0.1,
    "attention_dropout": 0.2, "embedding_dropout": 0.1,
}  # fmt: skip
ROPES = {
    "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 30.0},
    "full_attention": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 90.0},
}

CASES = [
    *[Case("modernbert", name, {**SMALL, "num_labels": 5}) for name in CLASSES],
    Case("modernbert", "ModernBertForQuestionAnswering", SMALL),
    Case("modernbert", "ModernBertForSequenceClassification", ODD, "odd"),
    Case(
        "modernbert", "ModernBertForTokenClassification",
        {**ODD, "local_attention": 13, "rope_parameters": ROPES, "num_labels": 3}, "odd",
    ),
    Case(
        "modernbert", "ModernBertForMaskedLM",
        {**SMALL, "decoder_bias": False, "tie_word_embeddings": False, "num_hidden_layers": 3,
         "sparse_prediction": True, "sparse_pred_ignore_index": -100,
         "layer_types": ["sliding_attention", "full_attention", "full_attention"]},
        "sparse", skip={"N7": "with labels, the scores are one row per label, of all texts [published]"},
    ),
]  # fmt: skip
