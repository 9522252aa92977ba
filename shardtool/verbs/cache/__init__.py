"""Keep whole shards in a folder of limited size on a fast disk.

Any number of processes share the folder, without a daemon. `FOLDER/shardtool-cache.json` contains the version.
`FOLDER/lock` is locked while space is reserved or freed. `copied/` contains copies of shards. `written/` contains
shards that `CacheWriter` writes. `counts/` contains the statistics of each process.

A reader holds a *lease*, a shared lock on the shard's file. A process that copies a shard locks the shard's
*reservation*, a small file that contains the number of reserved bytes. Other processes wait for the copy, or make the
copy themselves if the copying process has exited. A copy is verified and leased before it gets its final name.

The access time of a file records when the shard was last leased, and the modification time when the shard was
added. The policy uses these times to choose the shards to evict.

If the cache fails, for example because the disk is full, `Cache.open` returns the original shard, and the user gets one
note. `Cache.open` raises errors only for invalid requests. See docs/decisions/013-cache-leases.md.
"""
