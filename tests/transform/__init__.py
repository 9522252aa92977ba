"""Laws of what is done to samples on their way into a shard."""
