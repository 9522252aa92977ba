"""Which samples and fields were asked for: pure."""
