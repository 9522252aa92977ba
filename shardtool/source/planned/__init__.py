"""A plan file as a source: what a listing has found, kept for runs that use it again."""
