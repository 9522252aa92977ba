"""Decide which sample goes into which shard, before a byte is written. Opens no files."""
