"""Training objectives, one per file: each turns raw examples into loss terms."""
