"""The commands that the course adds to `anyformer`. Like the files of anyformer.cli; ABOUT is the line in the help."""
