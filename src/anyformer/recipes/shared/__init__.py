"""Helpers of several recipes: small models, data sets, and runs on your own data."""
