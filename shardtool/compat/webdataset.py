"""webdataset's `ShardWriter`, with the same arguments, writing datasets of shardtool.

It differs where shardtool's guarantees require it:

- `maxsize` limits the finished file, headers included, and no shard exceeds it.
- Existing output is refused without `overwrite=True` or `resume=True`.
- Keys are unique.
- A block that an exception leaves publishes no dataset file.
- Names and times in the headers are the same as in every shard of shardtool.

Source: webdataset 1.0.2, `webdataset/writer.py`.
"""

from __future__ import annotations

import os
import sys
from math import inf
from numbers import Real
from typing import TYPE_CHECKING, Any

from shardtool.compat.webdataset_encoders import make_encoder
from shardtool.errors import InvalidRequest
from shardtool.pattern import parse_pattern
from shardtool.publish.append_target import remaining_names
from shardtool.writer.writer import ShardWriter as Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_KEY = "__key__"


_FIXED_ARGUMENTS: dict[str, tuple[tuple[object, ...], str]] = {  # what may be given, and what every shard has
    "compress": ((None, False), "shards are not compressed, so that samples can be read by themselves"),
    "mtime": ((None, 0), "times in headers are 0, so that the same samples give the same bytes"),
    "user": (("bigdata", ""), "headers name no user"),
    "group": (("bigdata", ""), "headers name no group"),
    "mode": ((0o444, 0o644), "the mode in headers is 0644"),
    "format": ((None, "USTAR_FORMAT", 0), "shards are ustar, with pax headers for names that it cannot hold"),
}


class ShardWriter(Writer):
    """Writes samples into tar shards; see the module for what differs from webdataset's.

    Args:
        pattern: The shards' names, such as `out-%06d.tar`.
        maxcount: Samples in a shard at most; a float, such as 1e4, or infinity, too.
        maxsize: Bytes of a finished shard at most; as `maxcount`.
        post: Called with the path of each shard once it is there. It may take it away.
        start_shard: The number of the first shard.
        verbose: Print the name of each shard.
        opener: Refused: shards are files of a folder.
        encoder: As of webdataset's `TarWriter`.
        keep_meta: As of webdataset's `TarWriter`.
        overwrite: As of `shardtool.ShardWriter`.
        resume: As of `shardtool.ShardWriter`.
        fixed: Other arguments of webdataset's `TarWriter`, which are taken where they ask for what every shard has.

    Raises:
        InvalidRequest: An argument asks for what no shard is.
        OutputExists: The output is there already.
        OutputFailed: It cannot be written.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - webdataset's arguments, in its order
        self,
        pattern: str,
        maxcount: float = 100000,
        maxsize: float = 3e9,
        post: Callable[[str], object] | None = None,
        start_shard: int = 0,
        verbose: int = 1,
        opener: Callable[[str], object] | None = None,
        *,
        encoder: object = True,
        keep_meta: bool = False,
        overwrite: bool = False,
        resume: bool = False,
        **fixed: object,
    ) -> None:
        if opener is not None:
            expected = "None: shards are files of a folder, and `post` can move them"
            raise InvalidRequest("opener", repr(opener), expected=expected)
        for name, value in fixed.items():
            if name not in _FIXED_ARGUMENTS:
                known = ", ".join(("encoder", "keep_meta", *_FIXED_ARGUMENTS, "overwrite", "resume"))
                raise InvalidRequest("ShardWriter", f"no argument {name!r}", expected=f"one of {known}")
            if value not in _FIXED_ARGUMENTS[name][0]:
                raise InvalidRequest(name, repr(value), expected=_FIXED_ARGUMENTS[name][1])
        names = remaining_names(parse_pattern(pattern), start_shard)
        if names.format != "tar":
            raise InvalidRequest(pattern, f"{names.format} shards", expected="names that end in .tar")
        self._encode, self._keep_meta, self._waits = make_encoder(encoder), keep_meta, overwrite
        self._names, self._post, self.verbose = names, post, verbose
        super().__init__(
            os.path.join(names.folder, names.text),
            max_count=_parse_bound("maxcount", maxcount),
            max_size=_parse_bound("maxsize", maxsize),
            oversize="alone",
            overwrite=overwrite,
            resume=resume,
        )
        self.start_shard, self._told = start_shard, len(self.shards)
        self.count = self.size = 0
        self._print_name(self.total)

    @property
    def total(self) -> int:
        """How many samples are written."""
        return self.samples

    @property
    def shard(self) -> int:
        """The number of the shard after the one that is being written."""
        return self.start_shard + self._told + 1

    @property
    def fname(self) -> str:
        """The path of the shard that is being written."""
        return os.path.join(self._names.folder, self._names.shard(self._told))

    def write(self, obj: Mapping[str, Any], metadata: Mapping[str, object] | None = None) -> None:
        """Write a sample: a dict of its key, `__key__`, and its fields; `metadata`: further columns of its row.

        Raises:
            InvalidRequest: It cannot be written.
            OutputFailed: The file system refuses.
        """
        encoded = self._encode(dict(obj))
        fields: dict[str, object] = {}
        for name, value in encoded.items():
            if name == _KEY or (name.startswith("_") and not self._keep_meta):
                continue
            found = value.encode() if isinstance(value, str) and name.startswith("_") else value
            if not isinstance(found, bytes | bytearray | memoryview):
                kind = f"a value of the type {type(value).__name__}, once it was encoded"
                raise InvalidRequest(f"field {name!r}", kind, expected="bytes")
            fields[name] = found
        key = {_KEY: encoded[_KEY]} if _KEY in encoded else {}
        before = self.total
        super().write({**key, **fields}, metadata)
        self._call_post(before)
        self.count += 1
        self.size += sum(len(value) for value in fields.values() if isinstance(value, bytes | bytearray | memoryview))

    def close(self) -> None:
        """Publish the last shard, and the dataset file.

        Raises:
            InvalidRequest: No sample was written.
            OutputFailed: The file system refuses.
        """
        super().close()
        self._waits = False
        self._call_post()

    finish = close

    def _call_post(self, before: int | None = None) -> None:
        """Hand the shards over that are there since the last time; those that replace others are there at the end.

        Args:
            before: Samples that they hold, all together; None: the writer is closed.
        """
        if self._waits:
            return
        for _ in self.shards[self._told :]:
            path = self.fname
            self._told += 1
            if self._post is not None:
                self._post(path)
            if before is not None:
                self._print_name(before)
                self.count = self.size = 0

    def _print_name(self, before: int) -> None:
        """Print the name of the shard that begins, and what is written: in the last shard, and in all."""
        if self.verbose:
            sys.stdout.write(f"# writing {self.fname} {self.count} {self.size / 1e9:.1f} GB {before}\n")


def _parse_bound(name: str, given: float) -> int | None:
    """Return a bound, which may be a float such as 1e4; None: there is none."""
    if given == inf:
        return None
    if isinstance(given, bool) or not isinstance(given, Real) or not given >= 1:
        raise InvalidRequest(name, f"{given!r}", expected="a number from 1")
    return int(given)
