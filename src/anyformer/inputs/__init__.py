"""Conversion of raw data (text, images, audio) to model inputs and back."""
