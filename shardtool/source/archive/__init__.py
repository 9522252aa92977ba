"""Archives as a source: the files of a zip or a tar, read in place."""
