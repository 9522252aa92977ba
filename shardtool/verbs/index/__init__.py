"""Create sidecars, dataset files and other tools' indexes for existing shards."""
