"""Download the files listed as URLs in a manifest."""
