"""A manifest as a source: a table with one row per sample or per file."""
