from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 96, "type_vocab_size": 3, "initializer_range": 0.3, "relative_attention": True,
    "pos_att_type": "p2c|c2p", "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm",
}  # fmt: skip
# distances beyond 12 of 17 share a vector
ODD = {
    "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 3, "hidden_act": "gelu_new", "embedding_size": 20,
    "layer_norm_eps": 1e-3, "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0, "type_vocab_size": 0,
    "pad_token_id": None, "max_relative_positions": 12, "position_biased_input": False, "share_att_key": False,
    "pooler_dropout": 0.15, "pooler_hidden_act": "tanh", "pooler_hidden_size": 36, "cls_dropout": 0.2,
    "attention_head_size": 12, "norm_rel_ebd": "none", "conv_kernel_size": 3, "conv_act": "gelu",
}  # fmt: skip
CLASSES = ("DebertaV2ForMaskedLM", "DebertaV2Model", "DebertaV2ForQuestionAnswering", "DebertaV2ForMultipleChoice")
LABELLED = ("DebertaV2ForSequenceClassification", "DebertaV2ForTokenClassification")


def deberta(name: str, config: dict, kind: str = "", **more: dict) -> Case:
    return Case("deberta-v2", name, {**SMALL, **config}, kind, **more)


CASES = [
    *[deberta(name, {}) for name in CLASSES],
    *[deberta(name, {"num_labels": 5, "pad_token_id": 3}) for name in LABELLED],
    *[deberta(name, ODD, "odd") for name in (*CLASSES, *LABELLED)],
    deberta(LABELLED[0], {"num_labels": 1, "problem_type": "regression"}, "regression"),
    deberta(CLASSES[0], {"tie_word_embeddings": False}, "untied"),
    deberta(CLASSES[0], {"legacy": False, "pos_att_type": ["p2c"]}, "new-head"),
    deberta("DebertaV2Model", {"pos_att_type": ["c2p"], "position_buckets": 13}, "content-to-position"),
    deberta("DebertaV2Model", {"position_buckets": -1, "max_relative_positions": 9}, "no-buckets"),
    deberta("DebertaV2Model", {"position_buckets": 32, "share_att_key": False}, "wide-buckets"),
    deberta("DebertaV2Model", {"pos_att_type": None}, "no-terms"),
    deberta("DebertaV2Model", {"relative_attention": False}, "absolute"),
    deberta("DebertaV2Model", {"conv_kernel_size": 5, "conv_groups": 4, "num_hidden_layers": 1}, "one-layer"),
]
