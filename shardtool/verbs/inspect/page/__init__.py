"""The HTML page of a dataset, and the samples on it."""
