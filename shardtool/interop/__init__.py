"""Formats and rules of other tools, one module for each tool."""
