"""The public functions, one for each command.

They have a package, because a module `shardtool.create` would hide the function `shardtool.create`.
"""
