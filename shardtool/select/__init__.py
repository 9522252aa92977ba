"""Select samples and fields, and compute keys, splits and order. Only `--join` reads a file."""
