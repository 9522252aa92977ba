"""Tests of our shards with other tools, and of our reader with training frameworks. `make interop` runs them."""
