"""What lies on disk, read and written; the one reader of sidecars."""
