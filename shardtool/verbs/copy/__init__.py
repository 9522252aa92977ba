"""Copy finished datasets."""
