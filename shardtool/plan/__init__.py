"""Assign samples to shards before a byte is written. Opens no files."""
