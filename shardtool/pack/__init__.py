"""Pack a source into a dataset. This code runs in the parent process."""
