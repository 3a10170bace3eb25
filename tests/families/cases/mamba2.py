from catalogue import Case

SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 5, "pad_token_id": 3,
         "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8}  # fmt: skip
# rescale_prenorm_residual is off: with it, from_pretrained divides the weights that it has just loaded
ODD = {
    "expand": 3, "num_heads": 6, "head_dim": 16, "n_groups": 3, "conv_kernel": 3, "use_bias": True,
    "use_conv_bias": False, "hidden_act": "gelu", "layer_norm_epsilon": 1e-3, "residual_in_fp32": False,
    "tie_word_embeddings": True, "state_size": 1, "time_step_min": 0.01, "time_step_max": 0.2, "time_step_floor": 0.05,
    "initializer_range": 0.03, "time_step_rank": 7, "chunk_size": 64,
}  # fmt: skip
# the published single-token step ignores the limit, so its texts are generated without a cache
LIMIT = {**SMALL, "state_size": 6, "time_step_limit": [0.5, 0.7], "use_bias": True, "n_groups": 8, "conv_kernel": 6,
         "use_cache": False}  # fmt: skip

CASES = [
    Case("mamba2", "Mamba2ForCausalLM", SMALL),
    Case("mamba2", "Mamba2Model", SMALL),
    Case("mamba2", "Mamba2ForCausalLM", {**SMALL, **ODD}, "odd"),
    Case("mamba2", "Mamba2Model", {**SMALL, **ODD}, "odd"),
    Case("mamba2", "Mamba2ForCausalLM", LIMIT, "limit"),
    Case("mamba2", "Mamba2ForCausalLM", {**SMALL, "conv_kernel": 1, "n_groups": 1, "num_hidden_layers": 3}, "one-tap"),
]
