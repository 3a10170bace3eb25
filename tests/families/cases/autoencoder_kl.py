from catalogue import Case

SMALL = {
    "down_block_types": ["DownEncoderBlock2D"] * 3, "up_block_types": ["UpDecoderBlock2D"] * 3,
    "block_out_channels": [8, 12, 12], "layers_per_block": 2, "latent_channels": 3, "norm_num_groups": 4,
    "sample_size": 16,
}  # fmt: skip
ODD = {
    "down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2,
    "block_out_channels": [6, 9], "norm_num_groups": 3, "use_quant_conv": False, "use_post_quant_conv": False,
    "mid_block_add_attention": False, "act_fn": "mish", "scaling_factor": 0.7, "shift_factor": 0.3,
    "layers_per_block": 1, "in_channels": 1, "out_channels": 1,
}  # fmt: skip

CASES = [
    Case("autoencoder_kl", "AutoencoderKL", SMALL, inputs={"sample": (3, 16, 16)}),
    Case("autoencoder_kl", "AutoencoderKL", {**SMALL, **ODD}, "odd", inputs={"sample": (1, 16, 16)}),
]
