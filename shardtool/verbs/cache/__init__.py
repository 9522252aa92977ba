"""Keep whole shards in a bounded folder on a fast disk, shared by any number of processes, without a daemon.

**Files.** `FOLDER/shardtool-cache.json` contains the version. `FOLDER/lock` is held while space is reserved or freed.
`copied/` contains copies of shards, `written/` shards of samplers, and `counts/` the statistics of each process.

**Leases.** A reader holds a shared `flock` on the shard's file. Eviction requires an exclusive lock. The kernel
releases a lock with its last descriptor, so a lease cannot outlive its process. A forked child keeps its parent's
leases.

**One copy.** To copy a shard, a process locks its *reservation*, an empty file. Other processes poll until they find
the copy, or get the lock because its owner has exited. The copy is written under a temporary name, verified against the
sidecar, leased, and renamed. Therefore no visible shard is incomplete, damaged, or evicted before its first reader
opens it.

**The bound.** A process reserves bytes before it writes them. Under the folder's lock, it adds up all shards and live
reservations, and evicts shards until the new shard fits.

**Order.** Leasing sets a shard's access time, and copying sets its modification time. Eviction uses these times.

**Failures.** If the cache cannot be used (disk full, all shards in use), the reader gets the original shard, and the
user gets one note. Only invalid requests raise errors.
"""
