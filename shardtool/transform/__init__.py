"""Transform samples before they are packed: download URLs, convert images, call a user function."""
