"""Helpers for recipes: small models, sources of data sets, and runs on your own data."""
