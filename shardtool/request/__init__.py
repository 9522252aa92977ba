"""Options, results and records of runs, and calls of verbs."""
