from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 128, "type_vocab_size": 3, "initializer_range": 0.3, "block_size": 16,
    "num_random_blocks": 2,
}  # fmt: skip
# blocks of two tokens, one random: texts of more than 14 tokens are sparse, and 17 tokens are padded to 18
SPARSE = {**SMALL, "block_size": 2, "num_random_blocks": 1, "pad_token_id": 3}
ODD = {
    "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 3, "hidden_act": "relu", "layer_norm_eps": 1e-3,
    "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0, "pad_token_id": None, "use_bias": False,
    "rescale_embeddings": True, "classifier_dropout": 0.2, "attention_type": "original_full", "sep_token_id": 9,
    "chunk_size_feed_forward": 1, "type_vocab_size": 2,
}  # fmt: skip
CLASSES = ("BigBirdForPreTraining", "BigBirdForMaskedLM", "BigBirdModel",
           "BigBirdForQuestionAnswering", "BigBirdForMultipleChoice")  # fmt: skip
LABELLED = ("BigBirdForSequenceClassification", "BigBirdForTokenClassification")
BLOCKS = {
    "N4": "the first and the last block of a row are global, including padding [published]",
    "N7": "block boundaries depend on the row, not on its documents; long packed documents are refused",
}
SEPARATED = {"input_ids": {0: 66, 12: 66}}  # no question: a label inside one is never trained (test_big_bird.py)


def case(name: str, config: dict, kind: str = "", skip: dict | None = None) -> Case:
    inputs = SEPARATED if name == "BigBirdForQuestionAnswering" else {}
    return Case("big_bird", name, {**SMALL, **config}, kind, inputs, skip or {})


CASES = [
    *[case(name, SPARSE, "sparse", BLOCKS) for name in (*CLASSES, *LABELLED)],
    *[case(name, {}) for name in CLASSES],
    *[case(name, {"num_labels": 5}) for name in LABELLED],
    *[case(name, ODD, "odd") for name in (*CLASSES, *LABELLED)],
    case(LABELLED[0], {"num_labels": 1, "use_bias": False}, "regression"),
    case("BigBirdForMaskedLM", {"tie_word_embeddings": False}, "untied"),
    case("BigBirdForCausalLM", {"is_decoder": True}, "decoder"),
    case("BigBirdForCausalLM", {**ODD, "is_decoder": True}, "odd-decoder"),
    case("BigBirdModel", {"is_decoder": True, "use_bias": False}, "decoder"),
]
