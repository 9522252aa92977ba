"""Write a dataset from a program's samples, in the calling process."""
