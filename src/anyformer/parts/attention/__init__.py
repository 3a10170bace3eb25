"""Attention, and mixers that stand in its place: one file a method, under the name people know."""
