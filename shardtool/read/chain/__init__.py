"""What is done to samples on their way to training code: decoded, changed, chosen, put into batches."""
