"""Objects in stores and behind HTTP: addresses, requests, and what lies there."""
