"""Embeddings, which turn inputs into vectors: text, patches, spectrograms, waveforms, trajectories."""
