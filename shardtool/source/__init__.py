"""Sources of samples. A source lists its samples as a table."""
