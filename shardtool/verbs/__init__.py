"""The verbs: one public function for each command.

The verbs are in this package because a module `shardtool.create`, once imported, would hide the function.
"""
