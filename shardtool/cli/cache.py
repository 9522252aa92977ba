"""`shardtool cache`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from shardtool.verbs.cache.cache import CacheChange, CacheStatus

_FOUND = 3  # the exit code of `verify`, too


@click.command(no_args_is_help=True)
@click.argument("action", type=click.Choice(["status", "clear", "verify"]))
@click.argument("folder", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
@click.option("--quiet", is_flag=True, help="No summary.")
def cache(action: str, folder: str, *, as_json: bool, quiet: bool) -> int:
    """Look at a cache of shards, check it, or empty it: FOLDER is what `shardtool.Cache` was given.

    \b
      status  what is there, who holds what, how often shards were there
      clear   remove all shards that no process holds
      verify  read all shards, and remove those that are damaged; exit code 3 if there were any

    Programs that use the cache go on meanwhile. Files that are none of the cache's are listed, and left alone.

    \b
    Examples:
      shardtool cache status /fast/disk/cache
      shardtool cache verify /fast/disk/cache --json
    """
    from shardtool.cli.output import show, show_json
    from shardtool.verbs.cache.cache import cache_clear, cache_status, cache_verify

    if action == "status":
        status = cache_status(folder)
        document, text, code = status.to_json(), _status_text(status), 0
    else:
        change = cache_verify(folder) if action == "verify" else cache_clear(folder)
        found = action == "verify" and bool(change.removed or change.held)
        document, text, code = change.to_json(), _change_text(change), _FOUND if found else 0
    if as_json:
        show_json(document)
    elif not quiet:
        show(text)
    return code


def _status_text(status: CacheStatus) -> str:
    from shardtool.values import counted, show_size

    counts, rate = status.counts, status.counts.hit_rate
    held = [one for one in status.shards if one.held]
    lines = [f"{counted(len(status.shards), 'shard')}, {show_size(status.size)}; {len(held):,} held"]
    if status.taken:
        lines[0] += f"; {show_size(status.taken)} taken by what is being written"
    if rate is not None:
        passed = f", {counts.passed:,} read at their own place" if counts.passed else ""
        found = f"{counts.hits:,} found, {counts.copies:,} copied{passed}; {counts.evicted:,} evicted"
        lines.append(f"hit rate  {rate:.1%}: {found}")
    for what, pids in (("used by", status.readers), ("written by", status.writers)):
        if pids:
            lines.append(f"{what}  {_ids(pids)}")
    lines += [f"held      {one.path}{' by ' + _ids(one.pids) if one.pids else ''}" for one in held]
    return "\n".join([*lines, *_foreign(status.foreign)])


def _change_text(change: CacheChange) -> str:
    from shardtool.values import counted, show_size

    lines = [f"{len(change.removed):,} of {counted(change.looked_at, 'shard')} removed, {show_size(change.size)}"]
    lines += [f"removed   {path}: {why}" for path, why in change.removed.items() if why]
    lines += [f"held      {path}{why and ': ' + why}" for path, why in change.held.items()]
    return "\n".join([*lines, *_foreign(change.foreign)])


def _foreign(paths: tuple[str, ...]) -> list[str]:
    from shardtool.errors import printable

    return [f"foreign   {printable(path)}" for path in paths]


def _ids(pids: tuple[int, ...]) -> str:
    return f"process {', '.join(map(str, pids))}"
