"""Data that the package generates, from a seed: episodes, speech, pictures, text and conversations."""
