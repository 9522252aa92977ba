"""Copy datasets."""
