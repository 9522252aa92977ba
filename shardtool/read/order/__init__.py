"""Which sample stands at which position of an epoch, and which reader takes it: pure functions, without I/O."""
