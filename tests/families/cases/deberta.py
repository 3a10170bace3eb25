from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 96, "type_vocab_size": 3, "initializer_range": 0.3, "relative_attention": True,
    "pos_att_type": "c2p|p2c",
}  # fmt: skip
# the text is longer than the maximal relative position
ODD = {
    "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 3, "hidden_act": "gelu_new", "embedding_size": 20,
    "layer_norm_eps": 1e-3, "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0, "type_vocab_size": 0,
    "pad_token_id": None, "max_relative_positions": 7, "position_biased_input": False, "pooler_dropout": 0.15,
    "pooler_hidden_act": "tanh", "pooler_hidden_size": 36, "cls_dropout": 0.2,
}  # fmt: skip
CLASSES = ("DebertaForMaskedLM", "DebertaModel", "DebertaForQuestionAnswering")
LABELLED = ("DebertaForSequenceClassification", "DebertaForTokenClassification")
MIXED = {"I2": "talking heads mix the weights of several heads"}


def deberta(name: str, config: dict, kind: str = "", **more: dict) -> Case:
    return Case("deberta", name, {**SMALL, **config}, kind, **more)


CASES = [
    *[deberta(name, {}) for name in CLASSES],
    *[deberta(name, {"num_labels": 5, "pad_token_id": 3}) for name in LABELLED],
    *[deberta(name, ODD, "odd") for name in (*CLASSES, *LABELLED)],
    deberta(LABELLED[0], {"num_labels": 1, "problem_type": "regression"}, "regression"),
    deberta(CLASSES[0], {"tie_word_embeddings": False}, "untied"),
    deberta(CLASSES[0], {"legacy": False, "pos_att_type": ["p2c"]}, "new-head"),
    deberta("DebertaModel", {"pos_att_type": ["c2p"], "max_relative_positions": 40}, "content-to-position"),
    deberta("DebertaModel", {"pos_att_type": "none"}, "no-terms"),
    deberta("DebertaModel", {"relative_attention": False}, "absolute"),
    deberta("DebertaModel", {"talking_head": True}, "talking", skip=MIXED),
]
