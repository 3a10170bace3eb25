"""Changes applied from outside to a plain model, by address: one file each."""
