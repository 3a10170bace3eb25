"""Raw data to what a model reads, and back: text, images, sound, trajectories."""
