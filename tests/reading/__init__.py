"""Laws of the reader."""
