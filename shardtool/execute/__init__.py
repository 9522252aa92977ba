"""Worker processes: a function and its tasks go out, results come back as they are done."""
