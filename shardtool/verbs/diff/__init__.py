"""What differs between two datasets, or a dataset and its source."""
