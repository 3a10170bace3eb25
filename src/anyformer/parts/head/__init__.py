"""Heads, which map hidden states to named outputs and losses."""
