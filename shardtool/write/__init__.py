"""One planned shard becomes one file: what runs in a worker."""
