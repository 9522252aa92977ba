"""Tests of shardtool. The folders mirror the package."""
