"""Sources of samples. Code that runs in workers imports neither NumPy nor pyarrow, except to decompress shards."""
