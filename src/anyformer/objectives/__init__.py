"""Training objectives, one in each file: from raw examples to loss terms."""
