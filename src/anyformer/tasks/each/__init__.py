"""The tasks: each file has a function of the same name."""
