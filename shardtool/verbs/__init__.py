"""The verbs: one public function for each command.

The verbs are in a package of their own, because an imported module `shardtool.create` would hide the function.
"""
