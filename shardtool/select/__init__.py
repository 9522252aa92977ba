"""Select samples and fields, and compute keys, splits and the order of samples. Only `join` reads files."""
