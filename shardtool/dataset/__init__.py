"""Finished datasets on disk: dataset files, shards, indexes and sidecars.

Only this package parses sidecars.
"""
