"""Names become visible, in an order."""
