"""Data that the package makes by itself, the same for one seed on every machine: episodes, speech, pictures, text,
conversations."""
