"""The options and results of verbs, and the run records in dataset files."""
