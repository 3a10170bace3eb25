from catalogue import Case

SMALL = {
    "state_dim": 5, "act_dim": 3, "hidden_size": 32, "n_layer": 2, "n_head": 4, "max_ep_len": 60, "n_positions": 80,
    "vocab_size": 9, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ODD = {
    "n_inner": 40, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-3, "action_tanh": False,
    "scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False,
}  # fmt: skip

CASES = [
    Case("decision_transformer", "DecisionTransformerModel", SMALL),
    Case("decision_transformer", "DecisionTransformerModel", {**SMALL, **ODD}, "odd"),
    Case("decision_transformer", "DecisionTransformerGPT2Model", SMALL),
]
