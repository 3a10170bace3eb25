from catalogue import Case

SMALL = {
    "num_attention_heads": 4, "attention_head_dim": 8, "in_channels": 3, "num_layers": 2, "sample_size": 12,
    "num_embeds_ada_norm": 7,
}  # fmt: skip
ODD = {
    "attention_bias": False, "activation_fn": "geglu", "norm_elementwise_affine": True, "norm_eps": 1e-3,
    "out_channels": 6, "patch_size": 4, "dropout": 0.1,
}  # fmt: skip

CASES = [Case("dit", "DiTTransformer2DModel", SMALL), Case("dit", "DiTTransformer2DModel", {**SMALL, **ODD}, "odd")]
