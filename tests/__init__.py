"""Tests of shardtool; the folders mirror the package."""
