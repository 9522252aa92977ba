"""Whole jobs to copy, each a `.sh` or `.py`: from what lies on a disk to a dataset that is proven."""
