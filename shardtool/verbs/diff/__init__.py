"""Compare two datasets, or a dataset and its source."""
