"""Write planned shards to files, in worker processes."""
