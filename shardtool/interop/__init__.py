"""Formats and rules of other tools, a module each."""
