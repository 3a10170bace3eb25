"""Data of a forward pass (context, visible keys, decoding state, input checks, taps), and guarded child processes."""
