"""The samples of a source, as columns."""
