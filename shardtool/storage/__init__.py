"""Read and write files, in local folders, in object stores and on web servers."""
