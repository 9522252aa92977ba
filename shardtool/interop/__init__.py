"""Index formats of other tools, and names that these tools misread."""
