"""Sources of samples. A source lists its samples in a columnar table, and records how to read them."""
