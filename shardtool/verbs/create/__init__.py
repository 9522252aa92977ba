"""A plan is carried out, in the parent process."""
