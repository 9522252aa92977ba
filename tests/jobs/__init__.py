"""Complete jobs that you can copy, from files to a verified dataset. Each `.sh` or `.py` file is one job."""
