"""Samples of a program become a dataset, in the process that makes them."""
