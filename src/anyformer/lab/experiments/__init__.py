"""One experiment a file, found by its name; lab/experiment.py says what is in it."""
