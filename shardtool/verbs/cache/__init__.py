"""Keep whole shards in a bounded folder on a fast disk, shared by any number of processes, without a daemon.

`FOLDER/shardtool-cache.json` contains the version. `FOLDER/lock` is locked while space is reserved or freed.
`copied/` contains copies of shards. `written/` contains shards from samplers, which are processes that write new
samples into the cache. `counts/` contains the statistics of each process.

A reader holds a *lease*, a shared lock on the shard's file. A process that copies a shard locks the shard's
*reservation*, a small file that contains the number of reserved bytes. Other processes wait for the copy, or make it
themselves if the copying process has exited. A copy is verified and leased before it gets its final name.

The shard to evict is chosen by its access time, which each lease sets, or by its modification time, which is the time
when it was added.

If the cache fails, for example because the disk is full, the reader gets the original shard, and the user gets one
note. Only invalid requests raise errors. See docs/decisions/013-cache-leases.md.
"""
