"""Data of a forward pass (context, masks, decoding state, input checks, taps), and guarded child processes."""
