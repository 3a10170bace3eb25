"""Looking inside a model while it runs."""
