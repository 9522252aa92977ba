"""Read samples by number or key, in batches, and as streams."""
