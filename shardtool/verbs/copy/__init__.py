"""A finished dataset, as it is, becomes another copy of itself in another place."""
