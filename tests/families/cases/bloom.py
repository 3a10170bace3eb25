from catalogue import Case

SMALL = {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4, "pad_token_id": 3}
# the number of heads is not a power of two: slopes are from two series
ODD = {
    "hidden_size": 44, "n_head": 11, "n_layer": 3, "apply_residual_connection_post_layernorm": True,
    "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3, "hidden_dropout": 0.2, "attention_dropout": 0.3,
    "initializer_range": 0.1, "pretraining_tp": 4, "bos_token_id": 7, "eos_token_id": 8,
}  # fmt: skip
CLASSES = ("BloomForCausalLM", "BloomModel", "BloomForSequenceClassification", "BloomForTokenClassification",
           "BloomForQuestionAnswering")  # fmt: skip

CASES = [
    *[Case("bloom", name, {**SMALL, "num_labels": 2 if "Question" in name else 5}) for name in CLASSES],
    *[Case("bloom", name, {**SMALL, **ODD}, "odd") for name in CLASSES],
    Case("bloom", "BloomModel", {**SMALL, "n_head": 1, "slow_but_exact": True}, "one-head"),
    Case("bloom", "BloomForTokenClassification", {**SMALL, "n_head": 2, "classifier_dropout": 0.4}, "dropout"),
]
