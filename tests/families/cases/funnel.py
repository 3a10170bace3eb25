from catalogue import Case

SMALL = {
    "vocab_size": 99, "block_sizes": [2, 1, 2], "num_decoder_layers": 2, "d_model": 32, "n_head": 3, "d_head": 10,
    "d_inner": 40, "initializer_range": 0.3,
}  # fmt: skip
ODD = {
    "block_sizes": [1, 2], "block_repeats": [1, 2], "num_decoder_layers": 1, "d_model": 26, "n_head": 2, "d_head": 9,
    "hidden_act": "silu", "hidden_dropout": 0.3, "attention_dropout": 0, "activation_dropout": 0.2,
    "initializer_std": 0.2, "layer_norm_eps": 1e-3, "pooling_type": "max", "attention_type": "factorized",
    "separate_cls": False, "truncate_seq": False, "pool_q_only": False,
}  # fmt: skip
REPEATED = {"block_sizes": [2, 2, 1], "block_repeats": [2, 1, 3], "truncate_seq": False, "num_decoder_layers": 0}
CLASSES = ("FunnelForPreTraining", "FunnelForMaskedLM", "FunnelModel", "FunnelBaseModel", "FunnelForQuestionAnswering",
           "FunnelForMultipleChoice")  # fmt: skip
LABELLED = ("FunnelForSequenceClassification", "FunnelForTokenClassification")
JOINED = {
    "N4": "the published pooling merges neighbours and drops the last token, including padding",
    "N7": "the published pooling merges neighbours across documents",
}
ONE = {"block_sizes": [3], "block_repeats": None}


ZEROED = {"L5": "the published class zeroes the vector of the padding token on every load (test_funnel.py)"}


def funnel(name: str, config: dict, kind: str = "", **inputs: int) -> Case:
    skip = {**JOINED, **ZEROED} if config.get("pad_token_id") is not None else JOINED
    return Case("funnel", name, {**SMALL, **config}, kind, inputs, skip)


CASES = [
    *[funnel(name, {}) for name in CLASSES],
    *[funnel(name, {"num_labels": 5}) for name in LABELLED],
    *[funnel(name, ODD, "odd") for name in (*CLASSES, *LABELLED)],
    funnel("FunnelForMaskedLM", {"tie_word_embeddings": False, "attention_type": "factorized"}, "untied"),
    funnel("FunnelForPreTraining", {"pool_q_only": False, "pooling_type": "max"}, "all-pooled", length=16),
    funnel("FunnelModel", REPEATED, "repeated", length=18),
    funnel("FunnelModel", {**REPEATED, "attention_type": "factorized"}, "repeated-factorized", length=14),
    funnel("FunnelModel", {"separate_cls": False}, "joined", length=15),
    funnel("FunnelBaseModel", {"truncate_seq": False, "block_sizes": [1, 1, 1, 1]}, "four", length=16),
    funnel("FunnelModel", ONE, "one"),
    funnel("FunnelForMaskedLM", {"pad_token_id": 4}, "padding"),
]
