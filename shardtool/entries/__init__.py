"""The table of a source's samples (`SampleTable`), its columns, and conversions for them."""
