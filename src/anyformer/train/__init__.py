"""Training: descriptions of runs, data, optimisers, checkpoints and the loop."""
