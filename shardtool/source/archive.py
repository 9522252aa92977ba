"""A zip or tar archive as a source. It has the samples that a folder of the extracted files would have.

Workers read members from the archive. Members of a compressed tar are first copied to a temporary file.
"""

from __future__ import annotations

import os
import stat
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.shard_file import CompressedFile, ShardFile
from shardtool.errors import CorruptShard, InvalidRequest, SampleFailed, printable
from shardtool.format import tar_read, zip_read
from shardtool.messages import cli_option, flag_text
from shardtool.names import is_utf8, to_bytes, to_text
from shardtool.pattern import is_compressed_name
from shardtool.shard_samples import SPAN, SpanFile
from shardtool.skipped import SkipCode, Skipped
from shardtool.source.folder import FolderSource, collect_samples, drop_failed_samples, system_file_notes
from shardtool.source.scan_part import FileCollector, ScanPart, ScanRules
from shardtool.storage import paths
from shardtool.storage.files import stat_file
from shardtool.values import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.execute.pool import Pool
    from shardtool.format.zip_read import ZipMember
    from shardtool.request.create_options import CreateOptions
    from shardtool.request.observer import Observer
    from shardtool.select.key_pattern import KeyPattern
    from shardtool.source.base import Listing, Writable

    FolderListing = tuple[SampleTable, tuple[Skipped, ...], list[str]]


_LISTING_BYTES_PER_MEMBER = 128
_MIN_LISTING_LIMIT_BYTES, _LISTING_BYTES_PER_PACKED_BYTE = 2**27, 128
_MAX_NAME_BYTES = 2**13
_TAR_FOLDER = b"5"
_TAR_LINKS = (b"1", b"2")


class _ArchiveMember(NamedTuple):
    name: bytes
    offset: int
    size: int
    problem: tuple[SkipCode, str] | None


def _is_unsafe_path(name: bytes) -> bool:
    return b"\0" in name or any(part in (b"", b".", b"..") for part in name.split(b"/"))


def _link_problem() -> tuple[SkipCode, str]:
    advice = f"use {cli_option('symlinks', 'skip')} to skip them"
    return "special-file", f"a link; links in archives are not followed, {advice}"


def _zip_members(file: ShardFile | CompressedFile) -> Iterator[_ArchiveMember]:
    ranges = array("q")
    with ShardFile(file.path) as header_file:  # reads headers, so `file` does not seek back and forth
        for member in zip_read.iter_zip_members(file.read, file.size, file.path):
            problem, start = _zip_problem(member), member.offset + len(member.name)
            if not problem:
                start = zip_read.zip_payload_start(header_file.read, member, file.path)
            ranges.extend((member.offset, start + member.packed))
            if not member.name.endswith(b"/"):
                name = member.name if is_utf8(member.name) else member.name.decode("cp437").encode()
                yield _ArchiveMember(name, member.offset, member.size, problem)
    import numpy as np

    starts, ends = np.array(ranges, np.int64).reshape(-1, 2).T
    order = np.argsort(starts)
    if np.any(ends[order][:-1] > starts[order][1:]):
        raise CorruptShard(file.path, "overlapping members: a zip that unpacks to far more than its size")


def _zip_problem(member: ZipMember) -> tuple[SkipCode, str] | None:
    if member.encrypted:
        return "unreadable", "encrypted"
    if member.method not in (zip_read.STORED, zip_read.DEFLATED):
        return "unreadable", f"unsupported compression method {member.method}"
    return _link_problem() if stat.S_ISLNK(member.mode) else None


def _tar_members(file: ShardFile | CompressedFile) -> Iterator[_ArchiveMember]:
    for member in tar_read.iter_members(file.read, file.path):
        if member.kind == _TAR_FOLDER or member.name.endswith(b"/"):
            continue
        problem: tuple[SkipCode, str] | None = None
        if not member.is_file:
            problem = _link_problem() if member.kind in _TAR_LINKS else ("special-file", "not a regular file")
        yield _ArchiveMember(member.name, member.data, member.size, problem)


class ArchiveSource(FolderSource):
    """The files in an archive, or in a folder inside an archive, as a source."""

    def __init__(self, path_and_folder: tuple[str, str], options: CreateOptions, _outputs: object = ()) -> None:
        path, folder = path_and_folder
        self._path, self._folder, self._options = path, os.fsencode(folder), options
        self._source = os.path.join(path, folder).rstrip("/")
        self._name = printable(os.fsencode(os.path.join(os.path.basename(path), folder).rstrip("/")))
        self._form = "zip" if path.lower().endswith(".zip") else "tar"
        self._is_compressed = is_compressed_name(os.path.basename(path))
        try:
            self._stat = stat_file(path)
        except OSError as error:
            raise InvalidRequest(path, str(error.strerror)) from None
        self._copied: list[tuple[int, int]] = []  # offset and size of each payload in a compressed tar

    def select_and_sort(self, listing: Listing, _read_existing_keys: object) -> Listing:
        listing = super().select_and_sort(listing, _read_existing_keys)
        return self._set_copy_offsets(listing) if self._is_compressed else listing

    def write_payloads(self, file: Writable) -> None:
        with CompressedFile(self._path) as archive:
            for offset, size in self._copied:
                for done in range(0, size, BLOCK_BYTES):
                    block = archive.read(offset + done, min(BLOCK_BYTES, size - done))
                    if len(block) < min(BLOCK_BYTES, size - done):
                        raise CorruptShard(self._path, "truncated", offset=offset + done)
                    file.write(memoryview(block))
        stat_now = stat_file(self._path)
        if (stat_now.st_size, stat_now.st_mtime_ns) != (self._stat.st_size, self._stat.st_mtime_ns):
            expected = "an archive that does not change during the run"
            remedy = f"Run again with {flag_text('resume')}."
            raise SampleFailed(self._path, "changed while it was packed", expected=expected, remedy=remedy)

    def _list(self, pool: Pool, observer: Observer, pattern: KeyPattern | None) -> FolderListing:  # noqa: ARG002 - no worker is needed
        import numpy as np

        from shardtool.entries.sample_table import FieldSpans

        options = self._options
        rules = ScanRules(options.include, options.exclude, options.hidden, options.symlinks, options.dots or "first")
        with CompressedFile(self._path) if self._is_compressed else ShardFile(self._path) as file:
            part, offsets = self._read_members(file, rules)
        skipped, part.skipped = part.skipped, []
        changed = max(self._stat.st_ctime_ns, self._stat.st_mtime_ns)
        part.mtimes, part.changed = array("q", bytes(8 * len(offsets))), array("q", [changed]) * len(offsets)
        entries, _ = collect_samples(b"", [part])
        observer.listed(len(entries))
        stamp = self._stat.st_size, self._stat.st_mtime_ns
        file_numbers, unknown = np.zeros(len(entries), np.uint32), np.broadcast_to(np.int64(-1), len(offsets))
        files = () if self._is_compressed else (SpanFile(os.fsencode(self._path), *stamp, self._form),)
        spans = FieldSpans(files, file_numbers, offsets, unknown)
        entries = replace(entries, spans=spans, source_identity=paths.source_identity(os.fsencode(self._path)))
        skipped.sort(key=lambda row: (to_bytes(row.path), to_bytes(row.key)))
        notes = [*system_file_notes([part]), *self._top_folder_notes(entries.keys.data)]
        return *self._apply_key_pattern(drop_failed_samples(entries, skipped), tuple(skipped), pattern), notes

    def _read_members(self, file: ShardFile | CompressedFile, rules: ScanRules) -> tuple[ScanPart, NDArray[np.int64]]:
        limit = max(_MIN_LISTING_LIMIT_BYTES, _LISTING_BYTES_PER_PACKED_BYTE * self._stat.st_size)
        files, listing_bytes = FileCollector(rules), 0
        folder, skipped = self._folder, files.part.skipped
        for member in _zip_members(file) if self._form == "zip" else _tar_members(file):
            listing_bytes += _LISTING_BYTES_PER_MEMBER + len(member.name)
            if listing_bytes > limit:
                raise CorruptShard(file.path, "far more members than an archive of this size can have")
            name = member.name
            while name.startswith(b"./"):
                name = name[2:]
            if not name.startswith(folder) or len(name) == len(folder):
                continue
            name = name[len(folder) :]
            if _is_unsafe_path(name) or len(name) > _MAX_NAME_BYTES:
                path = to_text(name[:_MAX_NAME_BYTES])
                skipped.append(Skipped("", path, "unsafe-name", "a name that is not a valid path below a folder"))
                continue
            folder_count = len(files.folders)
            split = files.split(name, member.size)
            listing_bytes += (len(files.folders) - folder_count) * (_LISTING_BYTES_PER_MEMBER + name.rfind(b"/"))
            if split is None:
                continue
            if member.problem is None:
                files.add(split, member.size, member.offset, 0)
            elif member.problem != _link_problem() or rules.symlinks != "skip":
                skipped.append(Skipped(to_text(split[0]), to_text(name), *member.problem))
        sizes, offsets, _ = files.in_order(file.path)
        files.part.kinds, files.part.sizes = bytearray([SPAN]) * len(sizes), array("q", sizes.tobytes())
        return files.part, offsets

    def _top_folder_notes(self, keys: bytes) -> list[str]:
        options = [name for name in ("label_from_folder", "split_from_folder") if getattr(self._options, name)]
        top, slash, _ = keys.partition(b"\0")[0].partition(b"/")
        if not options or not slash or (b"\0" + keys).count(b"\0" + top + b"/") < keys.count(b"\0"):
            return []
        inner = os.path.join(self._source, printable(top))
        advice = f"pack {inner} to use {flag_text(options[0])} with its subfolders"
        return [f"all files are in the folder {printable(top)}: {advice}"]

    def _set_copy_offsets(self, listing: Listing) -> Listing:
        import numpy as np

        entries, spans = listing.entries, listing.entries.known_spans
        rows = np.flatnonzero(entries.rows.kind == SPAN)
        rows = rows[np.argsort(spans.offset[rows], kind="stable")]
        sizes, offset = entries.rows.size[rows], np.zeros(len(spans.offset), np.int64)
        offset[rows] = np.cumsum(sizes) - sizes
        self._copied = list(zip(spans.offset[rows].tolist(), sizes.tolist(), strict=True))
        return replace(listing, entries=replace(entries, spans=replace(spans, offset=offset)))
