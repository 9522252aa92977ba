"""Samples of a table."""
