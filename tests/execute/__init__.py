"""Laws of where tasks run."""
