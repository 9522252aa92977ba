"""Index formats and reading rules of other tools."""
