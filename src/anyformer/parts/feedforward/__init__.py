"""Feed-forward layers: MLP, gated MLP, experts, product-key memory."""
