"""An archive as a source: a zip or a tar of files is packed as the folder would be that it unpacks to.

Members are read where they lie, and nothing is unpacked to disk, but for compressed tars: those can only be
read in sequence, so that their files are copied to one temporary file beside the output, once.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool.dataset.shard_file import PackedFile, ShardFile
from shardtool.errors import CorruptShard, InvalidRequest, SampleFailed, printable
from shardtool.shard_names import is_packed_name
from shardtool.source.folder.scan import ScanRules
from shardtool.source.folder.source import FolderSource, left_behind_notes
from shardtool.storage.reading import file_stat, identity
from shardtool.values import SPAN, SpanFile, to_bytes
from shardtool.wording import flag, option

if TYPE_CHECKING:
    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Observer
    from shardtool.request.options import CreateOptions
    from shardtool.source.base import Listing, Writable
    from shardtool.source.folder.source import Found

_BLOCK = 2**20


class ArchiveSource(FolderSource):
    """The files of an archive.

    Args:
        path: Where it is.
        folder: The folder in it from which keys count; empty, or ending in a slash.
        options: What is asked for.
    """

    def __init__(self, path: str, folder: str, options: CreateOptions) -> None:
        self._path, self._folder, self._options = path, os.fsencode(folder), options
        self._source = os.path.join(path, folder).rstrip("/")
        self._name = printable(os.fsencode(os.path.join(os.path.basename(path), folder).rstrip("/")))
        self._form = "zip" if path.lower().endswith(".zip") else "tar"
        self._packed = is_packed_name(os.path.basename(path))
        try:
            self._fact = file_stat(path)
        except OSError as error:
            raise InvalidRequest(path, str(error.strerror)) from None
        self._copied: list[tuple[int, int]] = []  # of a compressed tar: where payloads lie that are copied, in order

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """List the samples of the archive."""
        listed = super().list_samples(pool, observer)
        return self._with_places_in_copy(listed) if self._packed else listed

    def write_binary(self, file: Writable) -> None:
        """Copy the files of a compressed tar that are packed.

        Raises:
            SampleFailed: The archive has changed.
            CorruptShard: It is damaged.
        """
        with PackedFile(self._path) as packed:
            for offset, size in self._copied:
                for done in range(0, size, _BLOCK):
                    block = packed.read(offset + done, min(_BLOCK, size - done))
                    if len(block) < min(_BLOCK, size - done):
                        raise CorruptShard(self._path, "ends too early", offset=offset + done)
                    file.write(memoryview(block))
        fact = file_stat(self._path)
        if (fact.st_size, fact.st_mtime_ns) != (self._fact.st_size, self._fact.st_mtime_ns):
            expected = "an archive that stays as it was when the run began"
            remedy = f"Run again with {option('if_exists', 'resume')}."
            raise SampleFailed(self._path, "changed while it was packed", expected=expected, remedy=remedy)

    def _list(self, pool: Pool, observer: Observer) -> Found:  # noqa: ARG002 - one process reads one file
        import numpy as np

        from shardtool.entries.entries import FieldSpans
        from shardtool.source.archive.members import list_members
        from shardtool.source.folder.samples import collect

        options = self._options
        dots = options.dots or "first"
        rules = ScanRules(options.include, options.exclude, options.hidden, options.symlinks, dots)
        size, is_zip = self._fact.st_size, self._form == "zip"
        with PackedFile(self._path) if self._packed else ShardFile(self._path) as file:
            found = list_members(file, self._folder, rules, is_zip=is_zip, size=size)
        changed = max(self._fact.st_ctime_ns, self._fact.st_mtime_ns)
        found.part.mtimes = array("q", bytes(8 * len(found.offsets)))
        found.part.changed = array("q", [changed]) * len(found.offsets)
        entries, _ = collect(b"", [found.part])
        observer.listed(len(entries))
        file_of, unknown = np.zeros(len(entries), np.uint32), np.broadcast_to(np.int64(-1), len(found.offsets))
        files = () if self._packed else (SpanFile(os.fsencode(self._path), size, self._fact.st_mtime_ns, self._form),)
        spans = FieldSpans(files, file_of, found.offsets, unknown)
        entries = replace(entries, spans=spans, identity=identity(os.fsencode(self._path)))
        lost = {to_bytes(one.key) for one in found.skipped if one.key}
        if lost:  # a sample that lost a field is left out whole
            kept = [at for at in range(len(entries)) if entries.keys[at] not in lost]
            entries = entries.take(np.array(kept, np.int64))
        skipped = tuple(sorted(found.skipped, key=lambda one: (to_bytes(one.path), to_bytes(one.key))))
        return entries, skipped, [*left_behind_notes([found.part]), *self._notes(entries.keys.data)]

    def _notes(self, keys: bytes) -> list[str]:
        """Note that all files lie in one folder, where folders are asked what they say."""
        asked = [name for name in ("label_from_folder", "split_from_folder") if getattr(self._options, name)]
        top, slash, _ = keys.partition(b"\0")[0].partition(b"/")
        if not asked or not slash or (b"\0" + keys).count(b"\0" + top + b"/") < keys.count(b"\0"):
            return []
        inner = os.path.join(self._source, printable(top))
        return [f"all files lie in the folder {printable(top)}: name {inner} for {flag(asked[0])} to see those in it"]

    def _with_places_in_copy(self, listed: Listing) -> Listing:
        """Return the samples with the places that their payloads get in the temporary file."""
        import numpy as np

        entries, spans = listed.entries, listed.entries.known_spans
        rows = np.flatnonzero(entries.rows.kind == SPAN)
        rows = rows[np.argsort(spans.offset[rows], kind="stable")]
        sizes, offset = entries.rows.size[rows], np.zeros(len(spans.offset), np.int64)
        offset[rows] = np.cumsum(sizes) - sizes
        self._copied = list(zip(spans.offset[rows].tolist(), sizes.tolist(), strict=True))
        return replace(listed, entries=replace(entries, spans=replace(spans, offset=offset)))
