"""Sidecars, dataset files and other tools' indexes for shards that are there already."""
