from catalogue import Case

SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 5, "pad_token_id": 3}
ODD = {
    "expand": 3, "conv_kernel": 3, "use_bias": True, "use_conv_bias": False, "hidden_act": "gelu", "time_step_rank": 7,
    "layer_norm_epsilon": 1e-3, "residual_in_fp32": False, "tie_word_embeddings": False, "state_size": 1,
    "time_step_init_scheme": "constant", "time_step_scale": 0.5, "time_step_min": 0.01, "time_step_max": 0.2,
    "time_step_floor": 0.05, "initializer_range": 0.03, "use_mambapy": True,
    "use_associative_scan": False,
}  # fmt: skip

CASES = [
    Case("mamba", "MambaForCausalLM", SMALL),
    Case("mamba", "MambaModel", SMALL),
    Case("mamba", "MambaForCausalLM", {**SMALL, **ODD}, "odd"),
    Case("mamba", "MambaModel", {**SMALL, **ODD}, "odd"),
    Case("mamba", "MambaForCausalLM", {**SMALL, "hidden_size": 37, "intermediate_size": 47, "conv_kernel": 6}, "inner"),
    Case("mamba", "MambaForCausalLM", {**SMALL, "conv_kernel": 1, "use_bias": True, "num_hidden_layers": 3}, "one-tap"),
]
