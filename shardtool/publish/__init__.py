"""Publish the files of a dataset in a safe order."""
