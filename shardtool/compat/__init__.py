"""Shardtool functions under the names of other tools, so programs change only an import."""
