"""Select samples and fields, and compute keys, splits and order. Of these modules, only `join` reads files."""
