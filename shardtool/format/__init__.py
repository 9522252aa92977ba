"""The bytes of the shard formats: no paths, no processes, no I/O."""
