"""Assign samples to shards before a byte is written. This room opens no files."""
