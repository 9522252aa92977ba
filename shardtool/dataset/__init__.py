"""Finished datasets on disk: dataset files, shards, indexes and sidecars."""
