"""Encode and decode the bytes of shard formats, without opening files or starting processes."""
