"""Our shards in the hands of the tools that people read shards with; `make interop` runs these."""
