"""Keep whole shards in a bounded folder on a fast disk, shared by any number of processes, without a daemon.

`FOLDER/shardtool-cache.json` contains the version. `FOLDER/lock` is locked while space is reserved or freed.
`copied/` contains copies of shards. `written/` contains shards that `CacheWriter` writes. `counts/` contains the
statistics of each process.

A reader holds a *lease*, a shared lock on the shard's file. A process that copies a shard locks the shard's
*reservation*, a small file with the number of reserved bytes. Other processes wait for the copy, or make the copy
themselves if the copying process has exited. A copy is verified and leased before it gets its final name.

A shard's access time is when it was last leased, and its modification time is when it was added. The policy chooses by
these times which shard to evict.

If the cache fails, for example because the disk is full, the reader gets the original shard, and the user gets one
note. Only invalid requests raise errors. See docs/decisions/013-cache-leases.md.
"""
