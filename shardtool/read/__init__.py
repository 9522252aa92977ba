"""Finished datasets, read: what is in them, and any sample's bytes."""
