"""Pack a source into a dataset. This package runs in the parent process, and `shardtool.write` runs in the workers."""
