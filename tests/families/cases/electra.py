from catalogue import Case

SMALL = {
    "vocab_size": 99, "embedding_size": 20, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": 96, "type_vocab_size": 3, "initializer_range": 0.3,
}  # fmt: skip
ODD = {
    "embedding_size": 36, "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 3, "hidden_act": "silu",
    "layer_norm_eps": 1e-3, "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0, "type_vocab_size": 1,
    "pad_token_id": None, "classifier_dropout": 0.2, "summary_use_proj": False, "summary_activation": "tanh",
    "summary_last_dropout": 0.15, "use_cache": False, "chunk_size_feed_forward": 1,
}  # fmt: skip
CLASSES = ("ElectraForPreTraining", "ElectraForMaskedLM", "ElectraModel", "ElectraForQuestionAnswering",
           "ElectraForMultipleChoice")  # fmt: skip
LABELLED = ("ElectraForSequenceClassification", "ElectraForTokenClassification")
WARNS = "the published class warns if it is built without is_decoder, but works"
PADS = {"N4": "published: the last token, or the mean, may include padding"}
DECODER, CROSS = {"is_decoder": True}, {"is_decoder": True, "add_cross_attention": True}

CASES = [
    *[Case("electra", name, SMALL) for name in CLASSES],
    *[Case("electra", name, {**SMALL, "num_labels": 5, "pad_token_id": 3}) for name in LABELLED],
    *[Case("electra", name, {**SMALL, **ODD}, "odd") for name in (*CLASSES, *LABELLED)],
    Case("electra", LABELLED[0], {**SMALL, "num_labels": 1, "hidden_act": "relu"}, "regression"),
    Case("electra", "ElectraForMaskedLM", {**SMALL, "tie_word_embeddings": False}, "untied"),
    Case("electra", "ElectraForMultipleChoice", {**SMALL, "summary_activation": ""}, "linear"),
    *[Case("electra", "ElectraForMultipleChoice", {**SMALL, "summary_type": kind}, kind, skip=PADS)
      for kind in ("last", "mean", "cls_index")],
    Case("electra", "ElectraForMultipleChoice", {**SMALL, "summary_proj_to_labels": True, "num_labels": 32}, "square"),
    Case("electra", "ElectraForCausalLM", {**SMALL, **DECODER}),
    Case("electra", "ElectraForCausalLM", {**SMALL, **ODD, **CROSS, "pad_token_id": 7}, "cross"),
    Case("electra", "ElectraForCausalLM", SMALL, "both-sides", skip={"L5": WARNS}),
    Case("electra", "ElectraModel", {**SMALL, **CROSS}, "cross"),
    Case("electra", "ElectraForTokenClassification", {**SMALL, **DECODER, "num_labels": 7}, "decoder"),
]  # fmt: skip
