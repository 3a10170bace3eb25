"""From hidden states to named outputs and losses."""
