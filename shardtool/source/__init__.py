"""List the samples of a source. Code in workers imports neither NumPy nor pyarrow, except to decompress shards."""
