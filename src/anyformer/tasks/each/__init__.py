"""What a person does with a model, a file for each task: a function of the same name."""
