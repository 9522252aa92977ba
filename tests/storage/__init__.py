"""Tests of files, folders and stores."""
