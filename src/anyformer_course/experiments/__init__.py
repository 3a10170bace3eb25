"""One experiment per file, found by the file's name. lab/experiment.py describes the contents of a file."""
