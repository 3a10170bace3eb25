"""What turns inputs into vectors: text, patches, spectrograms, waveforms, trajectories."""
