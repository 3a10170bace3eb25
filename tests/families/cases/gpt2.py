from catalogue import Case

SMALL = {
    "vocab_size": 99, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ODD = {
    "n_inner": 40, "activation_function": "relu", "layer_norm_epsilon": 1e-3, "scale_attn_by_inverse_layer_idx": True,
    "scale_attn_weights": False, "reorder_and_upcast_attn": True, "tie_word_embeddings": False,
}  # fmt: skip
CLASSES = ("GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification", "GPT2ForTokenClassification",
           "GPT2ForQuestionAnswering")  # fmt: skip

SUMMARY = {"summary_type": "mean", "summary_proj_to_labels": False, "summary_activation": "tanh",
           "summary_first_dropout": 0.4}  # fmt: skip
PADS = {"N4": "published: the mean includes padding"}

CASES = [
    *[Case("gpt2", name, {**SMALL, "pad_token_id": 3, "num_labels": 5}) for name in CLASSES],
    Case("gpt2", "GPT2LMHeadModel", {**SMALL, **ODD}, "odd"),
    Case("gpt2", "GPT2LMHeadModel", {**SMALL, "add_cross_attention": True}, "cross"),
    Case("gpt2", "GPT2DoubleHeadsModel", SMALL),
    Case("gpt2", "GPT2DoubleHeadsModel", {**SMALL, **ODD, **SUMMARY}, "odd", skip=PADS),
]
