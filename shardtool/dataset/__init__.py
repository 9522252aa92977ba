"""Finished datasets in storage: dataset files, shards, indexes and sidecars."""
