"""Options and results of verbs, and the record of a run in a dataset file."""
