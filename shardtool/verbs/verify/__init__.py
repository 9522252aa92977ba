"""Check datasets, and report problems as findings."""
