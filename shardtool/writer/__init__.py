"""`ShardWriter` writes a program's samples to a dataset."""
