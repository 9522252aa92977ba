"""Download the files that the URLs of a manifest name."""
