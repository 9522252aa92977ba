"""Check a dataset, and report problems as findings."""
