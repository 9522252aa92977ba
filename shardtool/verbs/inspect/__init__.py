"""Describe the content of a dataset."""
