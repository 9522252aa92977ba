"""Tests of worker pools."""
