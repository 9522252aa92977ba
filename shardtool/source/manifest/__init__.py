"""A manifest as a source. A manifest is a table with one row per sample or one row per file."""
