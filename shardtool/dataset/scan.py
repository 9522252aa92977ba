"""Read all headers of a shard, whichever tool wrote it, and return its samples and fields as columns.

A sample is a record of a TFRecord file, or a sequence of tar members with the same key, as in WebDataset. A leading
`./` of a name is ignored. Tar payloads are read only for checksums.
"""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataclass import dataclass
from shardtool.dataset.salvage import FIELDS_MAY_BE_LOST, LostRange, error_text, salvage_members, salvage_records
from shardtool.dataset.shard_file import (
    ChecksummedFile,
    CompressedFile,
    OpenShard,
    ShardFile,
    detect_kind,
    wrong_kind_error,
)
from shardtool.errors import CorruptShard, printable
from shardtool.fingerprint import content_digest, crc32c
from shardtool.format import tar_read, tfrecord_read
from shardtool.format.tfrecord_read import ExampleFeature, LazyBytes, TFRecord
from shardtool.names import MAX_FIELDS, is_utf8, quote_name
from shardtool.values import BLOCK_BYTES, Dots, FeatureType

if TYPE_CHECKING:
    from shardtool.format.tfrecord_read import Data


def interleaved_samples(keys: Sequence[bytes], fields: Sequence[frozenset[int]]) -> list[tuple[int, int]]:
    """Find samples whose members are not adjacent.

    A group is a range of adjacent members with the same key. `keys` and `fields` have one item per group. Return the
    indexes of the first two groups of each key with several groups. If two groups of a key have a common field, the key
    is a duplicate, and the result is empty.
    """
    first_indexes: dict[bytes, int] = {}
    interleaved: dict[bytes, tuple[int, int]] = {}
    fields_by_key: dict[bytes, frozenset[int]] = {}
    for index, (key, names) in enumerate(zip(keys, fields, strict=True)):
        earlier = fields_by_key.get(key, frozenset())
        if earlier & names:
            return []
        fields_by_key[key] = earlier | names
        if first_indexes.setdefault(key, index) != index:
            interleaved.setdefault(key, (first_indexes[key], index))
    return [*interleaved.values()]


_FILE_NAME_FEATURE = b"image/filename"
_KEY_FEATURES = (b"__key__", b"key", b"__key", _FILE_NAME_FEATURE)
_FILE_SUFFIX = re.compile(rb"(?<=[^/])\.[A-Za-z0-9]{1,8}$")
_RECORD_SUFFIX = re.compile(r"\.tfrecords?|\.(?:gz|bz2|xz|zst)$", re.IGNORECASE)
_MAX_KEY_BYTES = 2**20  # a longer `__key__` may be an attack, and is an error
_NO_END = 2**63
# Memory is limited, because a compressed shard can expand to a thousand times its size.
_BYTES_PER_FIELD, _BYTES_PER_SAMPLE, _BYTES_PER_NAME = 48, 128, 256
_BASE_MEMORY_BYTES = 2**27
_MEMORY_PER_BYTE = 8
_MEMORY_PER_COMPRESSED_BYTE = 128
_MEMORY_CHECK_BYTES = 2**22
_MAX_VARINT_BYTES = 11
_MAX_FIELD_NAMES = 2**16  # the fingerprint stores the codes of field names as uint16
_MAX_LISTED_DAMAGE = 100


class ShardScanTask(NamedTuple):
    """A shard to scan.

    Attributes:
        checksum: Whether to compute the CRC-32C of the payloads and of the file.
        salvage: Whether to continue after damage and keep the complete samples.
    """

    path: str
    checksum: bool = False
    dots: Dots = "first"
    salvage: bool = False


class UnrecognisedMember(NamedTuple):
    """A tar member that does not belong to a sample. `name` has no leading `./`."""

    offset: int
    name: bytes
    is_file: bool
    kind: bytes = b"0"
    link: bytes = b""

    @property
    def what(self) -> str:
        """Description of the member, for messages."""
        return f"{printable(self.name) or './'}: {'a name without a field' if self.is_file else 'not a regular file'}"


class FeatureConflict(NamedTuple):
    """The first sample in which a feature has several values, no value, or a type that differs from earlier samples."""

    sample: int
    kind: FeatureType
    values: int


@dataclass(slots=True)
class ShardScan:
    """The content of a shard, as columns. `ShardIndex` describes the columns from `keys` to `crcs`.

    If `ShardScanTask.checksum` is false, `crcs`, `nonzero_padding` and `text_rows` are empty.

    Attributes:
        size: Size of the file in bytes, or -1 for a compressed file, whose offsets count decompressed bytes.
        nonzero_padding: Offsets of padding that is not zero.
        digest: The content fingerprint, or None if unknown, for example because a TFRecord contains floats.
        text_rows: Row numbers of TFRecord fields with one integer.
        text_lengths: Length of the decimal text of each integer, such as 3 for -12.
        text_crcs: CRC-32C of each decimal text.
        ambiguous_headers: Offset and problem of each header that not all tar readers interpret in the same way.
        conflicts: For TFRecord, the first `FeatureConflict` of each feature, by index in `names`. If the type of a
            feature varies, its conflict is the first sample with another type.
        list_rows: For TFRecord, row numbers of fields whose payload is a whole list (see `ExampleFeature.is_list`).
        incomplete: Offset, key and problem of each sample that `salvage` excluded.
    """

    path: str
    format: str
    size: int
    keys: list[bytes] = field(default_factory=list)
    starts: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    counts: array[int] = field(default_factory=lambda: array("I"))
    names: list[bytes] = field(default_factory=list)
    codes: array[int] = field(default_factory=lambda: array("I"))
    kinds: list[FeatureType] = field(default_factory=list)
    offsets: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    crcs: array[int] = field(default_factory=lambda: array("I"))
    crc: int | None = None
    nonzero_padding: list[int] = field(default_factory=list)
    digest: int | None = None
    text_rows: array[int] = field(default_factory=lambda: array("Q"))
    text_lengths: array[int] = field(default_factory=lambda: array("B"))
    text_crcs: array[int] = field(default_factory=lambda: array("I"))
    unrecognised: list[UnrecognisedMember] = field(default_factory=list)
    ambiguous_headers: list[tuple[int, str]] = field(default_factory=list)
    conflicts: dict[int, FeatureConflict] = field(default_factory=dict)
    list_rows: array[int] = field(default_factory=lambda: array("Q"))
    error: CorruptShard | None = None
    lost: list[LostRange] = field(default_factory=list)
    incomplete: list[tuple[int, bytes, str]] = field(default_factory=list)
    _known: dict[bytes, int] = field(default_factory=dict, repr=False)

    def code(self, name: bytes, kind: FeatureType = "bytes") -> int:
        """Return the index of a field name in `names`. Add the name if it is new."""
        code = self._known.setdefault(name, len(self.names))
        if code == len(self.names):
            self.names.append(name)
            self.kinds.append(kind)
        return code

    def list_features(self) -> Iterator[str]:
        """Yield TFRecord features that always have the same type, but several values or no value in some sample."""
        for code, conflict in self.conflicts.items():
            if conflict.kind == self.kinds[code]:
                yield decode_name(self.names[code])

    def fields(self) -> list[frozenset[int]]:
        """Return, for each sample, the codes of its fields."""
        return [frozenset(self.codes[first:end]) for first, end in pairwise([0, *accumulate(self.counts)])]


def scan_shard(task: ShardScanTask) -> ShardScan:
    """Scan a shard. If `task.salvage` is false, stop at the first damage, and set `ShardScan.error`."""
    kind = detect_kind(task.path)
    file_class = ChecksummedFile if task.checksum and not task.salvage else ShardFile
    with CompressedFile(task.path, kind.compression) if kind.compression else file_class(task.path) as shard:
        scan = ShardScan(task.path, kind.format, shard.size)
        try:
            if scan.format == "tar":
                _scan_tar(shard, task, scan)
            else:
                _scan_tfrecord(shard, task, scan)
        except CorruptShard as error:
            scan.error = error if scan.keys else wrong_kind_error(task.path, error)
        if isinstance(shard, ChecksummedFile):
            try:
                scan.crc = shard.crc()
            except CorruptShard as error:
                scan.error = scan.error or error
    if scan.lost and scan.format == "tar":
        _drop_incomplete(scan, task.dots)
    if task.checksum and "float" not in scan.kinds and len(scan.names) <= _MAX_FIELD_NAMES:
        scan.digest = _content_digest(scan)
    return scan


def _drop_incomplete(scan: ShardScan, dots: Dots) -> None:
    bounds = [0, *accumulate(scan.counts)]
    incomplete = _incomplete_samples(scan, dots)
    scan.incomplete = [(scan.starts[sample], scan.keys[sample], reason) for sample, reason in incomplete.items()]
    kept_samples = [sample for sample in range(len(scan.keys)) if sample not in incomplete]
    rows = [row for sample in kept_samples for row in range(bounds[sample], bounds[sample + 1])]
    scan.keys = [scan.keys[sample] for sample in kept_samples]
    selections = dict.fromkeys(("starts", "sizes", "counts"), kept_samples)
    selections |= dict.fromkeys(("codes", "offsets", "lengths", *(["crcs"] if scan.crcs else [])), rows)
    for name, selection in selections.items():
        column = getattr(scan, name)
        setattr(scan, name, array(column.typecode, [column[index] for index in selection]))


def _incomplete_samples(scan: ShardScan, dots: Dots) -> dict[int, str]:
    fields, size = scan.fields(), scan.size
    neighbours, incomplete = dict[int, str](), dict[int, str]()
    for lost in scan.lost:
        previous, following = bisect_left(scan.starts, lost.start) - 1, bisect_right(scan.starts, lost.end - 1)
        for sample in [previous] if lost.end < 0 else [previous, following]:
            if 0 <= sample < len(scan.keys):
                neighbours[sample] = f"next to the range lost at {lost.start:,}"
                if scan.keys[sample] == _key_of(lost.name, dots) or (size < 0 and lost.end < 0):
                    incomplete[sample] = f"{neighbours[sample]}: {FIELDS_MAY_BE_LOST}"
    for sample, row_end in enumerate(accumulate(scan.counts)) if size >= 0 else ():
        if (end := scan.offsets[row_end - 1] + scan.lengths[row_end - 1]) > size:
            incomplete[sample] = f"the file ends inside this sample: {end - size:,} bytes are missing"
    all_fields = frozenset().union(*(names for sample, names in enumerate(fields) if sample not in incomplete))
    for sample, reason in neighbours.items():
        if sample not in incomplete and not fields[sample] >= all_fields:
            incomplete[sample] = f"{reason}: {FIELDS_MAY_BE_LOST}"
    return dict(sorted(incomplete.items()))


def _key_of(name: bytes, dots: Dots) -> bytes:
    name = name.removeprefix(b"./")
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base + 1) if dots == "first" else name.rfind(b".", base + 1)
    return name if dot < 0 else name[:dot]


def _content_digest(scan: ShardScan) -> int:
    lengths, crcs, codes = array("Q", scan.lengths), array("I", scan.crcs), array("H", scan.codes)
    for row, length, crc in zip(scan.text_rows, scan.text_lengths, scan.text_crcs, strict=True):
        lengths[row], crcs[row] = length, crc
    rank = {code: position for position, code in enumerate(sorted(range(len(scan.names)), key=scan.names.__getitem__))}
    orders: dict[bytes, list[int] | None] = {}
    end = 0
    for count in scan.counts:
        first, end = end, end + count
        code_bytes = codes[first:end].tobytes()
        if code_bytes not in orders:
            ranks = [rank[code] for code in codes[first:end]]
            sorted_rows = sorted(range(count), key=ranks.__getitem__)
            orders[code_bytes] = None if sorted_rows == [*range(count)] else sorted_rows
        order = orders[code_bytes]
        if order is not None:
            for column in (lengths, crcs, codes):
                column[first:end] = array(column.typecode, [column[first + index] for index in order])
    columns = {"codes": codes.tobytes(), "lengths": lengths.tobytes(), "crcs": crcs.tobytes()}
    return content_digest(scan.keys, scan.counts, scan.names, **columns)


def decode_name(name: bytes) -> str:
    """Return a key or field name as text, percent-encoded if it is not UTF-8."""
    return name.decode() if is_utf8(name) else quote_name(name)


def _payload_crc(shard: OpenShard, offset: int, length: int) -> int:
    crc = 0
    while length > 0 and (block := shard.read(offset, min(length, BLOCK_BYTES))):
        crc = crc32c(block, crc)
        offset += len(block)
        length -= len(block)
    return crc


class _ScanMemory:
    def __init__(self, shard: OpenShard, scan: ShardScan) -> None:
        self._scan = scan
        packed_size = shard.packed_size if isinstance(shard, CompressedFile) else None
        self._limit = _NO_END if packed_size is None else _MEMORY_PER_COMPRESSED_BYTE * packed_size
        self._text_bytes = self._keys = self._names = self._members = self._rows = 0
        self._has_long_name = False

    def check(self, end: int) -> int:
        """Raise an error if the scan exceeds a limit, else return the offset of the next check."""
        scan = self._scan
        self._text_bytes += sum(map(len, scan.keys[self._keys :])) + sum(map(len, scan.names[self._names :]))
        self._text_bytes += sum(len(member.name) + len(member.link) for member in scan.unrecognised[self._members :])
        if scan.counts and (max_count := max(scan.counts[max(0, self._keys - 1) :], default=0)) > MAX_FIELDS:
            problem, expected = f"a sample of {max_count:,} fields", f"at most {MAX_FIELDS:,} fields"
            raise CorruptShard(scan.path, problem, offset=scan.starts[scan.counts.index(max_count)], expected=expected)
        self._has_long_name |= any(len(name) > _BYTES_PER_NAME for name in scan.names[self._names :])
        if self._has_long_name:
            self._text_bytes += sum([len(scan.names[code]) for code in scan.codes[self._rows :]])
        self._rows = len(scan.codes)
        self._keys, self._names, self._members = len(scan.keys), len(scan.names), len(scan.unrecognised)
        memory = self._text_bytes + _BYTES_PER_FIELD * self._rows + _BYTES_PER_SAMPLE * self._keys
        memory += _BYTES_PER_NAME * (self._names + self._members)
        if memory > _BASE_MEMORY_BYTES + min(self._limit, _MEMORY_PER_BYTE * end):
            counts = f"{self._keys:,} samples, {self._rows:,} fields and {self._names:,} field names"
            problem = f"{counts}, which need more memory than allowed for its size"
            raise CorruptShard(scan.path, problem, offset=end, expected="a file that consists mostly of payloads")
        return end + _MEMORY_CHECK_BYTES


def _scan_tar(  # noqa: C901 - the hot path, one loop over all headers
    shard: OpenShard, task: ShardScanTask, scan: ShardScan
) -> None:
    last_key: bytes | None = None
    first_offset, fields = 0, dict[bytes, int]()
    keys, starts, sizes, counts = scan.keys, scan.starts, scan.sizes, scan.counts
    codes, offsets, lengths, first_dot = scan.codes, scan.offsets, scan.lengths, task.dots == "first"
    checksum = task.checksum
    memory = _ScanMemory(shard, scan)
    size_limit = scan.size if scan.size >= 0 else _NO_END
    next_check, end = min(_MEMORY_CHECK_BYTES, size_limit), 0

    def note(offset: int, problem: str) -> None:
        if len(scan.ambiguous_headers) < _MAX_LISTED_DAMAGE:
            scan.ambiguous_headers.append((offset, problem))

    members = tar_read.iter_members(shard.read, shard.path, note)
    if task.salvage:
        members = salvage_members(shard, note, scan.lost)
    for path, offset, start, size, is_file, end, kind, link in members:
        name = path.removeprefix(b"./")
        base = name.rfind(b"/") + 1
        dot = name.find(b".", base + 1) if first_dot else name.rfind(b".", base + 1)
        if not is_file or dot < 0 or dot == len(name) - 1:
            scan.unrecognised.append(UnrecognisedMember(offset, name, is_file, kind, link))
            last_key = None
            if end > next_check:
                next_check = min(memory.check(end), size_limit)
            continue
        key, ending = name[:dot], name[dot + 1 :]
        if key != last_key:
            keys.append(key)
            starts.append(offset)
            sizes.append(0)
            counts.append(0)
            last_key, first_offset = key, offset
        try:
            codes.append(fields[ending])
        except KeyError:
            codes.append(fields.setdefault(ending, scan.code(ending)))
        counts[-1] += 1
        offsets.append(start)
        lengths.append(size)
        sizes[-1] = end - first_offset
        if checksum:
            _checksum_member(shard, scan, start, size, end)
        if end > next_check:
            if end > size_limit and not task.salvage:
                cut = f"the file ends inside {printable(name)}, a member of {size:,} bytes"
                raise tar_read.tar_error(shard.path, start, cut)
            next_check = min(memory.check(end), size_limit)
    memory.check(end)


def _checksum_member(shard: OpenShard, scan: ShardScan, start: int, size: int, end: int) -> None:
    if size <= BLOCK_BYTES:
        block = shard.read(start, end - start)
        scan.crcs.append(crc32c(block[:size]))
        padding = block[size:]
    else:
        scan.crcs.append(_payload_crc(shard, start, size))
        padding = shard.read(start + size, end - start - size)
    if bytes(padding) != bytes(len(padding)) and len(scan.nonzero_padding) < _MAX_LISTED_DAMAGE:
        scan.nonzero_padding.append(start + size)


def _scan_tfrecord(shard: OpenShard, task: ShardScanTask, scan: ShardScan) -> None:
    stem = os.fsencode(_RECORD_SUFFIX.sub("", os.path.basename(shard.path)).replace(".", "_"))
    memory, next_check = _ScanMemory(shard, scan), _MEMORY_CHECK_BYTES
    hold = shard.hold if isinstance(shard, CompressedFile) else None
    records = tfrecord_read.iter_records(shard.read, shard.path, hold)
    if task.salvage:
        records = salvage_records(shard, hold, scan.lost)
    for number, record in enumerate(records):
        if record.offset > next_check:
            next_check = memory.check(record.offset)
        try:
            _add_record(shard, task, scan, record, b"%b/%09d" % (stem, number))
        except CorruptShard as error:
            if not task.salvage:
                raise
            scan.lost.append(LostRange(record.offset, record.end, error_text(error)))


def _add_record(shard: OpenShard, task: ShardScanTask, scan: ShardScan, record: TFRecord, default_key: bytes) -> None:
    in_memory = record.size <= tfrecord_read.MAX_HELD_RECORD_BYTES
    data = shard.read(record.data, record.size) if in_memory else LazyBytes(shard.read, record)
    if task.checksum:
        crc = _payload_crc(shard, record.data, record.size) if isinstance(data, LazyBytes) else crc32c(data)
        tfrecord_read.check_record_crc(record, crc, shard.path)
    features = tfrecord_read.parse_features(data, record.data, shard.path)
    key = default_key
    key_feature = _key_feature(features, shard.path)
    if key_feature is not None and key_feature.kind == "bytes" and key_feature.values == 1:
        offset = key_feature.offset - record.data
        key = bytes(data[offset : offset + key_feature.size])
        if key_feature.name == _FILE_NAME_FEATURE:
            key = _FILE_SUFFIX.sub(b"", key)
    sample = len(scan.keys)
    scan.keys.append(key)
    scan.starts.append(record.offset)
    scan.sizes.append(record.end - record.offset)
    fields = [feature for feature in features if feature is not key_feature or feature.name != b"__key__"]
    scan.counts.append(len(fields))
    for feature in sorted(fields, key=lambda item: item.name):
        code = scan.code(feature.name, feature.kind)
        if feature.values != 1 or feature.kind != scan.kinds[code]:
            _add_conflict(scan, sample, code, feature)
        if feature.is_list:
            scan.list_rows.append(len(scan.codes))
        scan.codes.append(code)
        scan.offsets.append(feature.offset)
        scan.lengths.append(feature.size)
        if task.checksum:
            _checksum_feature(shard, scan, data, feature.offset - record.data, feature)


def _checksum_feature(shard: OpenShard, scan: ShardScan, data: Data, offset: int, feature: ExampleFeature) -> None:
    if isinstance(data, LazyBytes):
        scan.crcs.append(_payload_crc(shard, feature.offset, feature.size))
    else:
        scan.crcs.append(crc32c(data[offset : offset + feature.size]))
    if feature.kind != "int64" or feature.values != 1:
        return
    value = tfrecord_read.decode_single_int(data[offset : offset + min(feature.size, _MAX_VARINT_BYTES)])
    if value is not None:
        text = b"%d" % value
        scan.text_rows.append(len(scan.crcs) - 1)
        scan.text_lengths.append(len(text))
        scan.text_crcs.append(crc32c(text))


def _key_feature(features: list[ExampleFeature], path: str) -> ExampleFeature | None:
    by_name = {feature.name: feature for feature in features}
    for feature in (by_name[name] for name in _KEY_FEATURES if name in by_name):
        if feature.size <= _MAX_KEY_BYTES:
            return feature
        if feature.name == _KEY_FEATURES[0]:
            problem, expected = f"a key of {feature.size:,} bytes", f"at most {_MAX_KEY_BYTES:,} bytes"
            raise tfrecord_read.tfrecord_error(path, feature.offset, problem, expected)
    return None


def _add_conflict(scan: ShardScan, sample: int, code: int, feature: ExampleFeature) -> None:
    earlier, kind = scan.conflicts.get(code), scan.kinds[code]
    if earlier is None or (earlier.kind == kind and feature.kind != kind):
        scan.conflicts[code] = FeatureConflict(sample, feature.kind, feature.values)
