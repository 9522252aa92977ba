"""Other tools' names for shardtool functions, so that programs need to change only an import."""
