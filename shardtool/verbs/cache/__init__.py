"""Keep whole shards in a bounded folder on a fast disk, shared by any number of processes, without a daemon.

**Files.** `FOLDER/shardtool-cache.json` marks a cache and contains its version. `FOLDER/lock` is held while space is
reserved or freed. `copied/` contains copies of shards, `written/` shards written by samplers, and `counts/` the
statistics of each process. Other files are foreign and never touched.

**Leases.** A reader of a shard holds a shared `flock` on the file; eviction requires an exclusive lock. The kernel
releases a lock with its last descriptor, so a lease cannot outlive its process. A forked child (a DataLoader worker)
keeps its parent's leases.

**One copy.** To copy a shard, a process locks its *reservation*, an empty file. Others poll until they find the copy,
or get the lock of a dead process. The copy is written under a temporary name, verified against the sidecar, leased, and
renamed. So no visible shard is incomplete or damaged, or evicted before its first reader opens it.

**The bound.** Bytes are reserved before they are written: under the folder's lock, all shards and live reservations are
added up, and shards are evicted until the new shard fits. The next scan deletes the reservations of dead processes.

**Order.** Leasing sets a shard's access time; copying sets its modification time. Eviction uses these times.

**Failures.** If the cache cannot be used (disk full, all shards in use), the reader gets the original shard, and the
user gets one note. Only invalid requests are errors.
"""
