"""Select samples and fields, and compute keys, splits and sample order. Only `join` reads files."""
