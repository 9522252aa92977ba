"""Laws of the bytes of the shard formats."""
