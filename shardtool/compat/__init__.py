"""Other tools' names for what shardtool does, for programs that were written for them: one import changes."""
