"""Shardtool functions with the names that other tools use, so programs change only their imports."""
