"""The public functions, one for each command.

They have their own package, because a module `shardtool.create` would hide the function `shardtool.create`.
"""
