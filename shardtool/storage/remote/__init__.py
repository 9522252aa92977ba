"""Object stores and HTTP servers: addresses, requests, objects and locks."""
