"""Weights: finding them (`hub`), reading and writing files (`io`), and mapping names (`rules`)."""
