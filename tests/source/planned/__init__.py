"""Tests of plan files."""
