"""The public functions, one for each command.

A module `shardtool.create` would hide the function `shardtool.create`, so the modules are in this package.
"""
