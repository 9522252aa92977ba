"""Tests of transforms of samples."""
