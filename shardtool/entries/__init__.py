"""The table of a source's samples (`SampleTable`) and its columns."""
