"""The HTML page of a dataset, and the samples that it shows."""
