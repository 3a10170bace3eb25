"""Attention and its alternatives: one file per method, named after the method or its model."""
