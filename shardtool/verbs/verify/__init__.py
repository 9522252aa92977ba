"""What is wrong with a dataset, as findings."""
