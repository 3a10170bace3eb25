from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 96, "type_vocab_size": 1, "initializer_range": 0.3, "layer_norm_eps": 1e-5,
}  # fmt: skip
ODD = {
    "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 3, "hidden_act": "silu", "layer_norm_eps": 1e-3,
    "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0, "type_vocab_size": 3, "pad_token_id": 4,
    "classifier_dropout": 0.2, "use_cache": False, "chunk_size_feed_forward": 1, "max_position_embeddings": 101,
}  # fmt: skip
CLASSES = ("RobertaForMaskedLM", "RobertaModel", "RobertaForQuestionAnswering", "RobertaForMultipleChoice")
LABELLED = ("RobertaForSequenceClassification", "RobertaForTokenClassification")
WARNS = "the published class warns whenever it is made without is_decoder, and works"
DECODER, CROSS = {"is_decoder": True}, {"is_decoder": True, "add_cross_attention": True}

CASES = [
    *[Case("roberta", name, SMALL) for name in CLASSES],
    *[Case("roberta", name, {**SMALL, "num_labels": 5, "pad_token_id": 0}) for name in LABELLED],
    *[Case("roberta", name, {**SMALL, **ODD}, "odd") for name in (*CLASSES, *LABELLED)],
    Case("roberta", LABELLED[0], {**SMALL, "num_labels": 1, "hidden_act": "relu"}, "regression"),
    Case("roberta", "RobertaForMaskedLM", {**SMALL, "tie_word_embeddings": False}, "untied"),
    Case("roberta", "RobertaForCausalLM", {**SMALL, **DECODER}),
    Case("roberta", "RobertaForCausalLM", {**SMALL, **ODD, **CROSS}, "cross"),
    Case("roberta", "RobertaForCausalLM", {**SMALL, **DECODER, "tie_word_embeddings": False}, "untied"),
    Case("roberta", "RobertaForCausalLM", SMALL, "both-sides", skip={"L5": WARNS}),
    Case("roberta", "RobertaModel", {**SMALL, **DECODER, "hidden_act": "quick_gelu"}, "decoder"),
    Case("roberta", "RobertaModel", {**SMALL, **CROSS}, "cross"),
    Case("roberta", "RobertaForTokenClassification", {**SMALL, **DECODER, "num_labels": 7}, "decoder"),
]
