from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 96, "type_vocab_size": 3, "initializer_range": 0.3,
}  # fmt: skip
ODD = {
    "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 3, "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-3, "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0, "type_vocab_size": 1,
    "pad_token_id": None, "classifier_dropout": 0.2, "use_cache": False, "chunk_size_feed_forward": 1,
}  # fmt: skip
CLASSES = ("BertForPreTraining", "BertForMaskedLM", "BertModel", "BertForNextSentencePrediction",
           "BertForQuestionAnswering", "BertForMultipleChoice")  # fmt: skip
LABELLED = ("BertForSequenceClassification", "BertForTokenClassification")
WARNS = "the published class warns if it is built without is_decoder, but works"
DECODER, CROSS = {"is_decoder": True}, {"is_decoder": True, "add_cross_attention": True}

CASES = [
    *[Case("bert", name, SMALL) for name in CLASSES],
    *[Case("bert", name, {**SMALL, "num_labels": 5, "pad_token_id": 3}) for name in LABELLED],
    *[Case("bert", name, {**SMALL, **ODD}, "odd") for name in ("BertForMaskedLM", *LABELLED, "BertForMultipleChoice")],
    Case("bert", "BertForSequenceClassification", {**SMALL, "num_labels": 1, "hidden_act": "silu"}, "regression"),
    *[Case("bert", name, {**SMALL, "tie_word_embeddings": False}, "untied") for name in CLASSES[:2]],
    Case("bert", "BertLMHeadModel", {**SMALL, **DECODER}),
    Case("bert", "BertLMHeadModel", {**SMALL, **ODD, **CROSS, "pad_token_id": 7}, "cross"),
    Case("bert", "BertLMHeadModel", {**SMALL, "hidden_act": "relu"}, "both-sides", skip={"L5": WARNS}),
    Case("bert", "BertModel", {**SMALL, **DECODER, "hidden_act": "quick_gelu"}, "decoder"),
    Case("bert", "BertModel", {**SMALL, **CROSS}, "cross"),
    Case("bert", "BertForTokenClassification", {**SMALL, **DECODER, "num_labels": 7}, "decoder"),
]
