"""What is done to a sample's bytes between reading and writing, in the workers."""
