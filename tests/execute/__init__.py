"""Tests of the pools that run tasks."""
