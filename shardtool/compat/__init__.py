"""Shardtool functions under the names of other tools, so that programs change only an import."""
