"""Laws of packing a shard, in a worker."""
