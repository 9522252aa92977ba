"""Compare a dataset with another dataset or with its source."""
