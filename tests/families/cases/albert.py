from catalogue import Case

SMALL = {
    "vocab_size": 99, "embedding_size": 20, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": 96, "type_vocab_size": 3, "initializer_range": 0.3,
}  # fmt: skip
# 7 steps through 3 groups of 2 layers: 0 0 0 1 1 2 2, each twice
ODD = {
    "embedding_size": 36, "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 7, "num_hidden_groups": 3,
    "inner_group_num": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-3, "hidden_dropout_prob": 0.3,
    "attention_probs_dropout_prob": 0.1, "classifier_dropout_prob": 0.2, "type_vocab_size": 1, "pad_token_id": None,
    "chunk_size_feed_forward": 1,
}  # fmt: skip
CLASSES = ("AlbertForPreTraining", "AlbertForMaskedLM", "AlbertModel", "AlbertForQuestionAnswering",
           "AlbertForMultipleChoice")  # fmt: skip
LABELLED = ("AlbertForSequenceClassification", "AlbertForTokenClassification")

CASES = [
    *[Case("albert", name, SMALL) for name in CLASSES],
    *[Case("albert", name, {**SMALL, "num_labels": 5, "pad_token_id": 3}) for name in LABELLED],
    *[Case("albert", name, {**SMALL, **ODD}, "odd") for name in (*CLASSES, *LABELLED)],
    Case("albert", LABELLED[0], {**SMALL, "num_labels": 1, "hidden_act": "relu"}, "regression"),
    *[Case("albert", name, {**SMALL, "tie_word_embeddings": False}, "untied") for name in CLASSES[:2]],
    # the order does not determine groups and layers within a group
    Case("albert", "AlbertForMaskedLM", {**SMALL, "num_hidden_layers": 2, "num_hidden_groups": 2}, "groups"),
    Case("albert", "AlbertForMaskedLM", {**SMALL, "num_hidden_layers": 1, "inner_group_num": 2}, "inner"),
]
