"""Shardtool functions under the names of other tools, so that programs need to change only an import."""
