from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 128, "type_vocab_size": 1, "initializer_range": 0.3, "layer_norm_eps": 1e-5,
    "attention_window": 4,
}  # fmt: skip
ODD = {
    "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 3, "hidden_act": "silu", "layer_norm_eps": 1e-3,
    "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0, "type_vocab_size": 3, "pad_token_id": 4,
    "attention_window": [4, 8, 4], "sep_token_id": 3, "chunk_size_feed_forward": 1, "onnx_export": True,
}  # fmt: skip
PLAIN = ("LongformerForMaskedLM", "LongformerModel")
LABELLED = ("LongformerForSequenceClassification", "LongformerForTokenClassification")
PARTED = ("LongformerForQuestionAnswering", "LongformerForMultipleChoice")
PACKED = {"N7": "three separators delimit the parts of a text [published]: a row has one text"}


def parts(name: str, config: dict, separator: int, kind: str = "") -> Case:
    """Put three separators into each text."""
    places = {"input_ids": {4: separator, 5: separator, 15: separator}}
    return Case("longformer", name, {**SMALL, **config}, kind, places, PACKED)


CASES = [
    *[Case("longformer", name, SMALL) for name in PLAIN],
    *[Case("longformer", name, {**SMALL, "num_labels": 5, "pad_token_id": 0}) for name in LABELLED],
    *[parts(name, {}, 2) for name in PARTED],
    *[Case("longformer", name, {**SMALL, **ODD}, "odd") for name in (*PLAIN, *LABELLED)],
    *[parts(name, ODD, 3, "odd") for name in PARTED],
    Case("longformer", LABELLED[0], {**SMALL, "num_labels": 1, "attention_window": 64}, "regression"),
    Case("longformer", "LongformerForMaskedLM", {**SMALL, "tie_word_embeddings": False}, "untied"),
]
