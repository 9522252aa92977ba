"""Any table becomes Arrow."""
