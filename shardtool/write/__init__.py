"""Write one planned shard to one file. This package runs in workers."""
