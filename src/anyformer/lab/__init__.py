"""Experiments: small trainings and measurements that check claims about Transformers."""
