"""Tests of the bytes of shard formats and archives."""
