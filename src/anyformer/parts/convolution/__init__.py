"""Convolutions along a sequence."""
