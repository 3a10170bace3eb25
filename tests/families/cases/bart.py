from catalogue import Case

SMALL = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "encoder_ffn_dim": 48, "encoder_attention_heads": 4,
    "decoder_layers": 2, "decoder_ffn_dim": 40, "decoder_attention_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
ODD = {
    "d_model": 27, "encoder_attention_heads": 3, "decoder_attention_heads": 9, "encoder_layers": 3, "decoder_layers": 1,
    "scale_embedding": True, "init_std": 0.1, "activation_function": "swish", "encoder_layerdrop": 0.3,
    "decoder_layerdrop": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.2, "dropout": 0.3,
    "classifier_dropout": 0.4, "max_position_embeddings": 90, "pad_token_id": 3, "eos_token_id": 4, "bos_token_id": 0,
    "decoder_start_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip
CLASSES = ("BartForConditionalGeneration", "BartModel", "BartForSequenceClassification", "BartForQuestionAnswering",
           "BartForCausalLM")  # fmt: skip


def inputs(name: str, end: int) -> dict:
    """For classification, each text (and each packed one) has an end token, and the decoder reads as many tokens."""
    return {"input_ids": {4: end, 12: end, 16: end}, "shorter": 0} if "Sequence" in name else {}


CASES = [
    *[Case("bart", name, SMALL, inputs=inputs(name, 2)) for name in CLASSES],
    *[Case("bart", name, {**SMALL, **ODD}, "odd", inputs=inputs(name, 4)) for name in CLASSES],
    Case("bart", CLASSES[2], {**SMALL, "num_labels": 1, "activation_function": "relu"}, "regression",
         inputs=inputs(CLASSES[2], 2)),
]  # fmt: skip
