from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 96, "type_vocab_size": 3, "initializer_range": 0.3, "conv_kernel_size": 5,
}  # fmt: skip
# texts of 18 tokens, landmarks of 3 tokens each
LANDMARKS = {"segment_means_seq_len": 18, "num_landmarks": 6}
ODD = {
    "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 3, "hidden_act": "gelu", "layer_norm_eps": 1e-3,
    "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0, "type_vocab_size": 1, "pad_token_id": 4,
    "conv_kernel_size": 1, "chunk_size_feed_forward": 1,
}  # fmt: skip
CLASSES = ("NystromformerForMaskedLM", "NystromformerModel", "NystromformerForQuestionAnswering",
           "NystromformerForMultipleChoice")  # fmt: skip
LABELLED = ("NystromformerForSequenceClassification", "NystromformerForTokenClassification")
CONVOLVED = {"N4": "the published convolution over the values reads padding next to the last tokens"}
FIXED = "landmarks divide a text of fixed length, and padding is part of their means"
ONE_LENGTH = {
    **dict.fromkeys(("N2", "N4", "N7"), FIXED),
    "L1": "the published class fails on padding: its mask has rows per token, not landmark (test_nystromformer.py)",
    "N3": "the inverse starts from the largest column sum of the whole batch [published]",
}


def landmarks(name: str, config: dict, kind: str) -> Case:
    return Case("nystromformer", name, {**SMALL, **LANDMARKS, **config}, kind, {"length": 18}, ONE_LENGTH)


CASES = [
    *[Case("nystromformer", name, SMALL, skip=CONVOLVED) for name in CLASSES],
    *[Case("nystromformer", name, {**SMALL, "num_labels": 5, "pad_token_id": None}, skip=CONVOLVED)
      for name in LABELLED],
    *[Case("nystromformer", name, {**SMALL, **ODD}, "odd") for name in (*CLASSES, *LABELLED)],
    *[landmarks(name, {}, "landmarks") for name in CLASSES],
    landmarks(LABELLED[0], {**ODD, "num_labels": 1, "num_landmarks": 2, "conv_kernel_size": 7}, "landmarks"),
    Case("nystromformer", CLASSES[0], {**SMALL, "tie_word_embeddings": False}, "untied", skip=CONVOLVED),
]  # fmt: skip
