"""`ShardWriter` writes the samples of a program to a dataset."""
