from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "attn_layers": ["local", "lsh"], "num_attention_heads": 4,
    "attention_head_size": 6, "feed_forward_size": 40, "axial_pos_shape": [8, 16], "axial_pos_embds_dim": [12, 20],
    "max_position_embeddings": 128, "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 8, "num_buckets": 4,
    "hash_seed": 3, "initializer_range": 0.3, "hidden_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0,
}  # fmt: skip
ODD = {
    "attn_layers": ["lsh", "lsh", "local"], "num_hashes": 3, "num_buckets": [2, 4], "hidden_act": "gelu",
    "lsh_num_chunks_after": 1, "local_num_chunks_before": 2, "local_num_chunks_after": 1, "layer_norm_eps": 1e-3,
    "hidden_dropout_prob": 0.2, "lsh_attention_probs_dropout_prob": 0.1, "axial_pos_embds": False,
    "classifier_dropout": 0.4, "chunk_size_feed_forward": 8, "chunk_size_lm_head": 4, "lsh_attn_chunk_length": 4,
}  # fmt: skip
CLASSES = ("ReformerForMaskedLM", "ReformerModel", "ReformerForQuestionAnswering")
WRITER = "ReformerModelWithLMHead"
LABELLED = "ReformerForSequenceClassification"
PACKED = {"N7": "chunk boundaries and sorting depend on the whole row [published]: a row has one text"}
RING = {**PACKED, "N4": "the chunk before the first one is the last of the row, even if it is padding [published]"}
SORTED = {
    **RING,
    "N1": "chunk boundaries depend on the whole text, including later tokens [published]",
    "G1": "chunk boundaries depend on the whole text: without a cache, the text is read again",
}
LOCAL = {"is_decoder": True, "attn_layers": ["local"]}
CHOSEN, WHOLE = {"num_buckets": None, "lsh_attn_chunk_length": 2}, {"lsh_attn_chunk_length": 64}


def reformer(name: str, config: dict, kind: str = "", skip: dict = RING) -> Case:
    return Case("reformer", name, {**SMALL, **config}, kind, {"length": 16}, skip)


CASES = [
    *[reformer(name, {}) for name in CLASSES],
    reformer(LABELLED, {"num_labels": 5}),
    reformer(WRITER, {"is_decoder": True}, skip=SORTED),
    *[reformer(name, ODD, "odd") for name in (*CLASSES, LABELLED)],
    reformer(WRITER, {**LOCAL, "attn_layers": ["local", "local"], "local_attn_chunk_length": 8}, "local", PACKED),
    reformer(WRITER, {**LOCAL, "local_num_chunks_before": 2}, "ring", SORTED),
    reformer("ReformerModel", {"is_decoder": True, "num_buckets": None, "lsh_attn_chunk_length": 4}, "chosen", SORTED),
    reformer("ReformerForMaskedLM", {**CHOSEN, "local_attn_chunk_length": 16}, "factored"),
    # no seed, and no hashing: a chunk contains the whole text
    reformer("ReformerForMaskedLM", {**WHOLE, "hash_seed": None, "tie_word_embeddings": True}, "dense"),
]
