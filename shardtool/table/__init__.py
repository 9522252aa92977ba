"""Read any table as Arrow."""
