"""Real servers of files and objects, which tests start on this machine's loopback, and a proxy that makes faults."""
