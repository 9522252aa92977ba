"""Which sample goes into which shard, before a byte is written: pure."""
