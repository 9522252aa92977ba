"""Finished datasets on disk: dataset files, shards, indexes, and the only reader of sidecars."""
