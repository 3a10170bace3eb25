from catalogue import Case

SMALL = {
    "vocab_size": 99, "num_latents": 18, "d_latents": 32, "d_model": 24, "num_self_attends_per_block": 2,
    "num_self_attention_heads": 4, "num_cross_attention_heads": 2, "initializer_range": 0.3,
}  # fmt: skip
ODD = {
    "num_latents": 21, "d_latents": 20, "d_model": 16, "num_blocks": 2, "num_self_attends_per_block": 3,
    "num_self_attention_heads": 5, "num_cross_attention_heads": 4, "qk_channels": 40, "v_channels": 20,
    "self_attention_widening_factor": 2, "cross_attention_widening_factor": 3, "hidden_act": "silu",
    "attention_probs_dropout_prob": 0.3, "layer_norm_eps": 1e-3, "use_query_residual": False,
    "cross_attention_shape_for_attention": "q",
}  # fmt: skip
PACKED = {"N7": "latents see a whole row, which has one text"}
# the published class scores all positions and needs labels for all; shorter texts: test_perceiver.py
WHOLE = dict.fromkeys(("N2", "N4"), "a text with labels fills all positions, without room for padding")
CLASSES = ("PerceiverForMaskedLM", "PerceiverForSequenceClassification")


def perceiver(name: str, config: dict, kind: str = "") -> Case:
    whole = {} if name == CLASSES[1] else WHOLE
    length = {"max_position_embeddings": 17 if whole else 60}
    return Case("perceiver", name, {**SMALL, **length, "num_labels": 3, **config}, kind, skip={**PACKED, **whole})


CASES = [
    *[perceiver(name, {}) for name in CLASSES],
    *[perceiver(name, ODD, "odd") for name in CLASSES],
    perceiver(CLASSES[0], {"cross_attention_shape_for_attention": "q"}, "as-wide-as-latents"),
    perceiver(CLASSES[1], {"num_labels": 1, "num_blocks": 3}, "three-blocks"),
]
