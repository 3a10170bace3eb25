from catalogue import Case

SMALL = {
    "vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
V11 = {**SMALL, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 3}
CLASSES = ("T5ForConditionalGeneration", "T5Model", "T5EncoderModel", "T5ForTokenClassification")

ENDS = {"input_ids": {4: 1, 12: 1, 16: 1}, "shorter": 0}  # each text, and each packed one, has an end token

CASES = [
    *[Case("t5", name, {**SMALL, "num_labels": 5}) for name in CLASSES],
    Case("t5", "T5ForQuestionAnswering", SMALL),
    Case("t5", "T5ForConditionalGeneration", V11, "v1.1"),
    Case("t5", "T5EncoderModel", V11, "v1.1"),
    # few narrow buckets, so that all of them are used; a head width that is not width / heads
    Case(
        "t5", "T5ForConditionalGeneration",
        {**SMALL, "d_kv": 10, "num_heads": 3, "num_layers": 3, "num_decoder_layers": 1,
         "relative_attention_num_buckets": 9, "relative_attention_max_distance": 7, "feed_forward_proj": "gated-silu",
         "layer_norm_epsilon": 1e-3, "dropout_rate": 0.3, "initializer_factor": 0.7, "pad_token_id": 3,
         "decoder_start_token_id": 4, "eos_token_id": 2},
        "odd",
    ),
    Case(
        "t5", "T5ForConditionalGeneration",
        {**SMALL, "feed_forward_proj": "gelu", "dense_act_fn": "tanh", "is_gated_act": True,
         "scale_decoder_outputs": False},
        "derived",
    ),
    Case("t5", "T5ForTokenClassification", {**SMALL, "classifier_dropout": 0.4}, "dropout"),
    Case("t5", "T5ForSequenceClassification", {**SMALL, "num_labels": 5}, inputs=ENDS),
    Case("t5", "T5ForSequenceClassification", {**V11, "num_labels": 1, "classifier_dropout": 0.3}, "v1.1", ENDS),
]  # fmt: skip
