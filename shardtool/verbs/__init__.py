"""The verbs, with one public function for each command.

The functions are in this package because a module `shardtool.create`, once imported, would hide the function.
"""
