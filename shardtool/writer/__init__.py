"""`ShardWriter`, with which a program writes its own samples to a dataset."""
