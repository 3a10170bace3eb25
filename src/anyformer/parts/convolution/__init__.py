"""Convolutions over a sequence."""
