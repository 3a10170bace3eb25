"""What a forward pass carries: the context, masks, decoding state (KV cache), inputs, and taps for looking inside."""
