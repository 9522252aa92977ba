"""Tests of sample transforms."""
