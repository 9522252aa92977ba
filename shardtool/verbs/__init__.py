"""The verbs, with one public function for each command.

They are in this package because a module `shardtool.create`, once imported, would hide the function.
"""
