"""Laws of files and folders."""
