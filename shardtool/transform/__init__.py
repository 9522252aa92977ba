"""Transform samples before packing, by downloading URLs, converting images, or calling a user function."""
