"""Keep whole shards in a bounded folder on a fast disk, shared by any number of processes, without a daemon.

**Files.** `FOLDER/shardtool-cache.json` marks a cache and contains its version. `FOLDER/lock` is held while space is
reserved or freed. `copied/` contains copies of shards from slow storage, `written/` shards written by samplers with
their sidecars, and `counts/` the statistics of each process. Other files are foreign: they are never touched, and a
note lists them.

**Leases.** A reader of a shard holds a shared `flock` on the file. Eviction requires an exclusive lock, without
waiting. The kernel releases a lock with its last descriptor, so a lease cannot outlive its process. A forked child (a
DataLoader worker) keeps its parent's leases, because it may read those shards. A probe refuses file systems without
working locks.

**One copy.** To copy a shard, a process creates and locks its *reservation*, an empty file. Other processes poll until
they find the copy, or get the lock of a dead process. The copy is written under a temporary name (`storage.staging`),
verified against the size and CRC-32C of the sidecar, leased, and renamed. So no visible shard is partly written or
damaged, or evicted before its first reader opens it.

**The bound.** Bytes are reserved before they are written. Under the folder's lock, the sizes of all shards and live
reservations are added up, and shards are evicted until the new one fits. The next scan deletes the reservations of dead
processes. There is no central account that could become wrong.

**Order.** Taking a lease sets a shard's access time, and copying its modification time. Eviction order follows from
these.

**Failures.** If the cache cannot be used (disk full, read-only, all shards in use), the reader gets the path of the
original shard, and the user one note. Only invalid requests are errors.
"""
