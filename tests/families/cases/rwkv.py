from catalogue import Case

SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 3}
# the published class's `attentions` and state have the model's width, so it returns none for another width
ODD = {
    "attention_hidden_size": 23, "intermediate_size": 37, "layer_norm_epsilon": 1e-3, "rescale_every": 0,
    "tie_word_embeddings": True, "use_cache": False, "context_length": 8, "num_hidden_layers": 3,
}  # fmt: skip
HALVED = {**SMALL, "hidden_size": 36, "num_hidden_layers": 5, "rescale_every": 2, "layer_norm_epsilon": 1e-3}
REASON = "the published class divides its weights in place in its first run, so they differ from the saved ones"

CASES = [
    Case("rwkv", "RwkvForCausalLM", SMALL),
    Case("rwkv", "RwkvModel", SMALL),
    Case("rwkv", "RwkvForCausalLM", {**SMALL, **ODD}, "odd"),
    Case("rwkv", "RwkvModel", {**SMALL, **ODD, "attention_hidden_size": 41}, "odd"),
    Case("rwkv", "RwkvForCausalLM", HALVED, "halved", skip={"L5": REASON}),
    Case("rwkv", "RwkvForCausalLM", {**SMALL, "rescale_every": -1, "hidden_size": 45, "use_cache": True}, "plain"),
]
