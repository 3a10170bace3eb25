from catalogue import Case

SMALL = {"vocab_size": 99, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 48}
ODD = {
    "n_embd": 33, "n_head": 3, "n_layer": 3, "layer_norm_epsilon": 1e-2, "resid_pdrop": 0.2, "embd_pdrop": 0.3,
    "initializer_range": 0.1, "tie_word_embeddings": False, "n_positions": 90,
}  # fmt: skip
CLASSES = ("CTRLLMHeadModel", "CTRLModel", "CTRLForSequenceClassification")

CASES = [
    *[Case("ctrl", name, {**SMALL, "num_labels": 5, "pad_token_id": 3}) for name in CLASSES],
    *[Case("ctrl", name, {**SMALL, **ODD, "pad_token_id": 4}, "odd") for name in CLASSES],
]
