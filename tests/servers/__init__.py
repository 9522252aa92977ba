"""Real file and object servers on the loopback interface, and a proxy that produces faults."""
