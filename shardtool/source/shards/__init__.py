"""Samples of shards."""
