"""Keep whole shards in a bounded folder on a fast disk, shared by any number of processes, without a daemon.

**Files.** `FOLDER/shardtool-cache.json` contains the version. `FOLDER/lock` is locked while space is reserved or freed.
`copied/` contains copies of shards, `written/` shards from samplers, and `counts/` the statistics of each process.

**Leases.** A reader holds a shared `flock` on the shard's file. Eviction requires an exclusive lock. The kernel
releases a lock when its last descriptor is closed, so a lease cannot outlive its process. A forked child keeps its
parent's leases.

**One copy.** To copy a shard, a process locks the shard's *reservation*, a small file. Other processes poll until they
find the copy, or get the lock because its owner has exited. The copy is written under a temporary name, verified
against the sidecar, leased, and renamed. Therefore no visible shard is incomplete or damaged, and none is evicted
before its first reader opens it.

**Size limit.** A process reserves bytes before it writes them. While it holds the folder's lock, it adds up all shards
and reservations of running processes, and evicts shards until the new shard fits.

**Order.** A lease sets a shard's access time, and copying sets its modification time. Eviction uses these times.

**Failures.** If the cache cannot be used (disk full, all shards in use), the reader gets the original shard, and the
user gets one note. Only invalid requests raise errors.
"""
