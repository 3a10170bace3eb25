from catalogue import Case

SMALL = {
    "vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 96,
    "initializer_range": 0.3,
}  # fmt: skip
ODD = {
    "dim": 36, "n_layers": 3, "n_heads": 3, "activation": "gelu_new", "dropout": 0.3, "attention_dropout": 0,
    "qa_dropout": 0.15, "seq_classif_dropout": 0.05, "sinusoidal_pos_embds": True, "pad_token_id": 3,
    "chunk_size_feed_forward": 1,
}  # fmt: skip
CLASSES = ("DistilBertForMaskedLM", "DistilBertModel", "DistilBertForQuestionAnswering", "DistilBertForMultipleChoice")
LABELLED = ("DistilBertForSequenceClassification", "DistilBertForTokenClassification")

CASES = [
    *[Case("distilbert", name, SMALL) for name in CLASSES],
    *[Case("distilbert", name, {**SMALL, "num_labels": 5, "pad_token_id": None}) for name in LABELLED],
    *[Case("distilbert", name, {**SMALL, **ODD}, "odd") for name in (*CLASSES, *LABELLED)],
    Case("distilbert", LABELLED[0], {**SMALL, "num_labels": 1, "activation": "relu"}, "regression"),
    Case("distilbert", "DistilBertForMaskedLM", {**SMALL, "tie_word_embeddings": False, "dim": 27, "n_heads": 9},
         "untied"),
]  # fmt: skip
