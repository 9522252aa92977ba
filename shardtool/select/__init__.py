"""Select samples and fields, and compute keys, splits and order. Only the code for `--join` reads a file."""
