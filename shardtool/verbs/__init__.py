"""The public functions, one for each command.

They are in this package, because a module `shardtool.create` would hide the function `shardtool.create`.
"""
