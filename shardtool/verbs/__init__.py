"""A public function per verb: the library twins of the commands.

A folder, not modules beside the package's others: `shardtool.create` must be the function, whatever
was imported before.
"""
