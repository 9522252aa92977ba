"""Where samples come from: a columnar table of entries, and how to read each."""
