from catalogue import Case

SMALL = {
    "vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4,
    "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 5, "decoder_start_token_id": 0,
    "expert_capacity": 3,
}  # fmt: skip
TYPE, CLASSES = "switch_transformers", ("ForConditionalGeneration", "Model", "EncoderModel")

CASES = [
    *[Case(TYPE, f"SwitchTransformers{name}", SMALL) for name in CLASSES],
    # all layers of the encoder are sparse, and one of the decoder although none was requested (published arithmetic)
    Case(
        TYPE, "SwitchTransformersForConditionalGeneration",
        {**SMALL, "d_kv": 10, "num_heads": 3, "num_layers": 3, "num_sparse_encoder_layers": 2,
         "num_decoder_layers": 4, "num_sparse_decoder_layers": 0, "num_experts": 3, "expert_capacity": 64,
         "router_bias": True, "router_jitter_noise": 0.2, "router_z_loss_coef": 0.1, "router_aux_loss_coef": 0.2,
         "relative_attention_num_buckets": 9, "relative_attention_max_distance": 7, "dense_act_fn": "gelu_new",
         "layer_norm_epsilon": 1e-3, "dropout_rate": 0.3, "initializer_factor": 0.7, "tie_word_embeddings": False,
         "pad_token_id": 3, "decoder_start_token_id": 4, "eos_token_id": 2},
        "odd",
    ),
    Case(
        TYPE, "SwitchTransformersForConditionalGeneration",
        {**SMALL, "num_sparse_encoder_layers": 7, "num_decoder_layers": 3, "decoder_sparse_step": 1,
         "expert_capacity": 2, "num_experts": 2},
        "steps",
    ),
]  # fmt: skip
