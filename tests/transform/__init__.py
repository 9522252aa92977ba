"""Laws of changes to samples while they are packed."""
