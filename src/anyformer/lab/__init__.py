"""Experiments: many small trainings and measurements, what they show, and whether it is so."""
