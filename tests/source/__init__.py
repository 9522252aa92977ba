"""Laws of where samples come from."""
