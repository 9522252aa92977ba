"""Fields written to files, one each, below a folder and nowhere else, whatever the sample's key says.

A path is walked part by part from the folder's descriptor, and links on the way are not followed. A file that is
there is an error, unless it may be replaced.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from shardtool.dataset.opened import payload
from shardtool.dataset.payload import numbers_in
from shardtool.dataset.shard_file import open_shard
from shardtool.errors import CorruptShard, OutputExists, OutputFailed, printable
from shardtool.fingerprint import crc32c
from shardtool.values import to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from shardtool.dataset.shard_file import PackedFile, ShardFile
    from shardtool.inspection.samples import FoundSample

_NAME_LIMIT = 255  # bytes of a name in a folder
_PATH_LIMIT = 4000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_IN_THE_WAY = (errno.ENOTDIR, errno.ELOOP, errno.EEXIST, errno.EISDIR)


def extract(sample: FoundSample, folder: str, *, overwrite: bool = False) -> tuple[str, ...]:
    """Write each field of a sample to `KEY.FIELD` below a folder, which is made where it is missing.

    A number of a TFRecord becomes text, several a JSON list.

    Returns:
        The files' paths.

    Raises:
        CorruptShard: The key or a field's name is no path below a folder, or a payload is damaged.
        OutputExists: There is a file of that name already, or something else where a folder must be.
        OutputFailed: It cannot be written.
    """
    parts = [_parts(sample, one["name"]) for one in sample.fields]  # all, before anything is written
    written = {}
    with _root(folder) as root, open_shard(sample.shard.path) as file:
        for at in sorted(range(len(parts)), key=lambda at: sample.fields[at]["offset"]):
            path = os.path.join(folder, *map(os.fsdecode, parts[at]))
            with _failures(path), _parent(root, parts[at][:-1]) as parent:
                if overwrite:
                    with suppress(FileNotFoundError):
                        os.unlink(parts[at][-1], dir_fd=parent)
                _write(parent, parts[at][-1], _blocks(sample, sample.fields[at], file))
            written[at] = path
    return tuple(written[at] for at in range(len(parts)))


def _parts(sample: FoundSample, field: str) -> list[bytes]:
    """Return the parts of a field's path, if all of them are plain names."""
    name = to_bytes(f"{sample.key}.{field}")
    parts = name.split(b"/")
    leads_out = any(part in (b"", b".", b"..") or b"\0" in part for part in parts)
    if leads_out or len(name) > _PATH_LIMIT or max(map(len, parts)) > _NAME_LIMIT:
        what = "no path below a folder" if leads_out else "too long for a file"
        raise CorruptShard(
            sample.shard.path, f"sample {sample.number:,}: {printable(name)[:_NAME_LIMIT]} is {what}",
            remedy="Nothing of it was written.",
        )  # fmt: skip
    return parts


@contextmanager
def _root(folder: str) -> Iterator[int]:
    """Give the descriptor of the folder that the user named: links in its own path are the user's."""
    with _failures(folder):
        os.makedirs(folder, exist_ok=True)
        root = os.open(folder, _FOLDER)
    try:
        yield root
    finally:
        os.close(root)


@contextmanager
def _failures(path: str) -> Iterator[None]:
    """Turn what the operating system says into errors that a user understands."""
    try:
        yield
    except OSError as error:
        found = (error.strerror or str(error)).lower()
        if error.errno in _IN_THE_WAY:
            found = "there already" if error.errno == errno.EEXIST else f"in the way: {found}"
            raise OutputExists(path, found, remedy="Choose another folder, or --overwrite files.") from None
        raise OutputFailed(path, found) from None


@contextmanager
def _parent(root: int, names: list[bytes]) -> Iterator[int]:
    """Give the descriptor of the folder `names` below `root`, made on the way; no link is followed."""
    folder = os.dup(root)
    try:
        for name in names:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _write(parent: int, name: bytes, blocks: Iterable[bytes]) -> None:
    """Write a file that is not there yet; of one that fails nothing stays."""
    file = os.open(name, _CREATE, 0o666, dir_fd=parent)
    try:
        for block in blocks:
            left = memoryview(block)
            while left:
                left = left[os.write(file, left) :]
    except BaseException:
        os.unlink(name, dir_fd=parent)
        raise
    finally:
        os.close(file)


def _blocks(sample: FoundSample, one: Mapping[str, Any], file: ShardFile | PackedFile) -> Iterator[bytes]:
    """Yield what goes into a field's file."""
    where = f"{sample.shard.path}, field {one['name']!r} of {sample.key}"
    blocks, crc = payload(file, one["offset"], one["length"], where), 0
    kind = sample.kinds.get(one["name"], "bytes")
    if kind != "bytes":
        blocks = iter([b"".join(blocks)])
    for block in blocks:
        crc = crc32c(block, crc)
        yield block if kind == "bytes" else _as_text(block, kind, where)
    if one["crc32c"] is not None and crc != one["crc32c"]:
        raise CorruptShard(where, "another checksum than its index says", remedy="Run `shardtool verify`.")


def _as_text(data: bytes, kind: str, where: str) -> bytes:
    try:
        numbers = numbers_in(data, kind)
    except ValueError:
        raise CorruptShard(where, f"no {kind}") from None
    return str(numbers[0] if len(numbers) == 1 else numbers).encode()
