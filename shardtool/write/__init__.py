"""Write planned shards to files. This code runs in workers."""
