"""Pack a source into a dataset, in the parent process. Workers run `shardtool.write`."""
