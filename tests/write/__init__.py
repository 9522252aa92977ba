"""Tests of packing a shard."""
