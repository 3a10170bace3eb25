from catalogue import Case

SMALL = {
    "vocab_size": 99, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 96, "n_langs": 3,
    "init_std": 0.3, "embed_init_std": 0.2,
}  # fmt: skip
ODD = {
    "emb_dim": 36, "n_heads": 3, "n_layers": 3, "gelu_activation": False, "sinusoidal_embeddings": True,
    "layer_norm_eps": 1e-3, "dropout": 0.3, "attention_dropout": 0, "n_langs": 1, "summary_first_dropout": 0.2,
    "start_n_top": 3, "end_n_top": 4, "pad_token_id": 4,
}  # fmt: skip
CLASSES = ("XLMWithLMHeadModel", "XLMModel", "XLMForQuestionAnsweringSimple", "XLMForQuestionAnswering")
LABELLED = ("XLMForSequenceClassification", "XLMForTokenClassification", "XLMForMultipleChoice")
PADS = {"N4": "published: the last token, or the mean, may include padding"}
SPANS = {
    "N4": "published: answers may start at padding, and the last position represents the text, even if it is padding",
    "N7": "published: one answer per row, from the probabilities of all its tokens",
}


def xlm(name: str, config: dict, kind: str = "", skip: dict | None = None) -> Case:
    usual = SPANS if name == "XLMForQuestionAnswering" else {}
    return Case("xlm", name, {**SMALL, **config}, kind, skip=usual if skip is None else skip)


CASES = [
    *[xlm(name, {}) for name in CLASSES],
    *[xlm(name, {"num_labels": 5}) for name in LABELLED],
    *[xlm(name, ODD, "odd") for name in (*CLASSES, *LABELLED)],
    *[xlm(name, {"causal": True}, "causal") for name in (*CLASSES, *LABELLED)],
    *[xlm(LABELLED[0], {"summary_type": kind}, kind, PADS) for kind in ("last", "mean", "cls_index")],
    xlm(LABELLED[0], {"num_labels": 1}, "regression"),
    xlm("XLMWithLMHeadModel", {"tie_word_embeddings": False}, "untied"),
    xlm("XLMModel", {"use_lang_emb": False}, "one-table"),
]
