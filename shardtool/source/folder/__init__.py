"""Samples of a folder tree."""
