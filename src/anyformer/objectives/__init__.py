"""What is learnt: one file an objective, from raw examples to loss terms."""
