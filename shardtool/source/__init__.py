"""Sources of samples: each lists its samples into a columnar table, and records how to read them."""
