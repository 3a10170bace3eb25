"""Weights: where they come from (`hub`), how files are read and written (`io`), how names map (`rules`)."""
