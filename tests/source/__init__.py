"""Tests of the sources of samples."""
