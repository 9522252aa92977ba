"""Write one planned shard to one file. This room runs in workers."""
