"""Complete jobs to copy, each a `.sh` or `.py`: from files to a verified dataset."""
