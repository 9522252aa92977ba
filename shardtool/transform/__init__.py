"""Transform samples before packing: download URLs, convert images, call a user function."""
