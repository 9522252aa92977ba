"""Read tables as Arrow: files, folders, standard input, or objects in memory."""
