"""Assign samples to shards before any shard is written. This package opens no files."""
