"""A folder of whole shards on a fast disk, bounded, shared by any number of processes, with no daemon.

**What is there.** `FOLDER/shardtool-cache.json` marks a cache and holds its version, `FOLDER/lock` is taken for the
moment in which space is given or taken away, `copied/` holds shards of slow datasets, `written/` those that samplers
write, with their sidecars, and `counts/` what each process has found. Other files are left alone; a note names them.

**Leases.** Who reads a shard holds a shared `flock` on it; who evicts it takes it alone, without waiting, or leaves it.
The kernel ends a lock with the last descriptor of it, so a lease dies with its process, however that ends, and
there is nothing to clean up. A forked child (a DataLoader's worker) keeps the leases of its parent alive, for it may
read those shards. Where the file system knows no locks the cache is refused; a probe finds out.

**One copy.** Who wants a shard that is not there takes the shard's *room*: an empty file, locked alone. The others look
for the shard, and for the room, again and again: they find the one, or, when its holder died, get the other.
The shard is copied under a temporary name (`storage.staging`), checked against the size and CRC-32C that its sidecar
says, leased, and then renamed: nothing that is visible is half written or damaged, and nothing is evicted between its
rename and its first reader.

**The bound.** Bytes are taken before they are written: under the folder's lock, what is there and what live rooms have
taken is added up, shards are evicted until the new ones fit, and only then the room says how much it takes. What a
dead room has left is removed by the next who looks. There is no central account that could be wrong.

**Order.** A lease sets the shard's access time, its copy the modification time: the files themselves show which one
is the oldest and which one was used least recently.

**Never in the way.** Whatever fails here (a full disk, one that is read-only, no room because all shards are held), the
reader gets the path of the shard itself, and the user one note. Only a request that makes no sense is an error.
"""
