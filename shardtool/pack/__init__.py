"""Pack a source into a dataset; this runs in the parent process."""
