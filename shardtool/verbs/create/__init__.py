"""Plan and write a dataset; this runs in the parent process."""
