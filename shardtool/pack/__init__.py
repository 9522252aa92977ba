"""Pack a source into a dataset, in the parent process. `shardtool.write` runs in the workers."""
