"""Read samples in training code: by number or key, in batches, and as streams."""
