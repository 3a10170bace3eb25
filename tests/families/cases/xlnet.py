from catalogue import Case

SMALL = {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 40, "initializer_range": 0.3}
ODD = {
    "d_model": 36, "n_head": 3, "n_layer": 3, "ff_activation": "silu", "layer_norm_eps": 1e-3, "dropout": 0.3,
    "mem_len": 7, "reuse_len": 5, "clamp_len": 4, "summary_use_proj": False, "summary_activation": "relu",
    "summary_last_dropout": 0.15, "start_n_top": 3, "end_n_top": 4, "pad_token_id": None, "chunk_size_feed_forward": 1,
}  # fmt: skip
CLASSES = ("XLNetLMHeadModel", "XLNetModel", "XLNetForQuestionAnsweringSimple")
LABELLED = ("XLNetForSequenceClassification", "XLNetForTokenClassification")
CHOOSE, ANSWER = "XLNetForMultipleChoice", "XLNetForQuestionAnswering"
PADS = {"N4": "published: the last position or the mean represents the text, including padding"}
SPANS = {
    "N4": "published: answers may start at padding, and the last position represents the text, even if it is padding",
    "N7": "published: one answer per row, from the probabilities of all its tokens",
}
HALVES = dict.fromkeys(
    ("N1", "N3", "N7"), "published: the second half of a batch is read backwards, so rows are not independent"
)
BACK = {"attn_type": "uni"}
NONE = {
    "attention_mask": None
}  # the published class adds the masks of a batch to the mask of one row in place, and fails


def xlnet(name: str, config: dict, kind: str = "", skip: dict | None = None, **inputs: object) -> Case:
    usual = {LABELLED[0]: PADS, CHOOSE: PADS, ANSWER: SPANS}.get(name, {})
    return Case("xlnet", name, {**SMALL, **config}, kind, inputs, usual if skip is None else skip)


CASES = [
    *[xlnet(name, {}) for name in (*CLASSES, CHOOSE, ANSWER)],
    *[xlnet(name, {"num_labels": 5}) for name in LABELLED],
    *[xlnet(name, ODD, "odd") for name in (*CLASSES, *LABELLED, CHOOSE, ANSWER)],
    xlnet("XLNetLMHeadModel", {"tie_word_embeddings": False, "use_mems_eval": False}, "untied"),
    xlnet("XLNetLMHeadModel", {**BACK, "mem_len": None, "use_mems_train": True}, "back", **NONE),
    xlnet("XLNetModel", {**BACK, "same_length": True}, "same-length", **NONE),
    xlnet("XLNetModel", {"bi_data": True}, "both-ways", HALVES, attention_mask=None),
    xlnet(LABELLED[0], {"num_labels": 1, "summary_activation": ""}, "regression"),
    xlnet(LABELLED[0], {"num_labels": 32, "summary_proj_to_labels": True, "summary_first_dropout": 0.2}, "square"),
    *[xlnet(CHOOSE, {"summary_type": kind}, kind, {} if kind == "first" else None)
      for kind in ("first", "mean", "cls_index")],
]  # fmt: skip
