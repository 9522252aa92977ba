"""Select samples and fields, and compute keys, splits and order. Pure, except that `--join` reads its table here."""
