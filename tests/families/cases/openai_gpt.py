from catalogue import Case

SMALL = {"vocab_size": 99, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4}
ODD = {
    "n_embd": 33, "n_head": 3, "n_layer": 3, "afn": "swish", "layer_norm_epsilon": 1e-3, "resid_pdrop": 0.2,
    "embd_pdrop": 0.3, "attn_pdrop": 0.4, "initializer_range": 0.1, "tie_word_embeddings": False,
    "summary_type": "mean", "summary_proj_to_labels": False, "summary_activation": "tanh", "summary_first_dropout": 0.4,
    "summary_last_dropout": 0.2,
}  # fmt: skip
CLASSES = ("OpenAIGPTLMHeadModel", "OpenAIGPTModel", "OpenAIGPTDoubleHeadsModel")

CASES = [
    *[Case("openai-gpt", name, SMALL) for name in CLASSES],
    *[Case("openai-gpt", name, {**SMALL, **ODD}, "odd") for name in CLASSES[:2]],
    Case("openai-gpt", CLASSES[2], {**SMALL, **ODD}, "odd", skip={"N4": "published: the mean includes padding"}),
    Case("openai-gpt", "OpenAIGPTForSequenceClassification", {**SMALL, "num_labels": 5, "pad_token_id": 3}),
    Case("openai-gpt", "OpenAIGPTLMHeadModel", {**SMALL, "afn": "relu"}, "relu"),
    Case("openai-gpt", CLASSES[2], {**SMALL, "summary_use_proj": False, "summary_type": "first"}, "bare"),
]
