"""Scan a shard, made by any tool, and return its content as columns. Runs in workers.

A sample is a run of members with the same key (WebDataset's rule; a leading `./` is ignored), or one record of a
TFRecord file. Payloads are read only if checksums are requested.
"""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.salvage import FIELDS_MAY_BE_LOST, LostRange, error_text, salvage_members, salvage_records
from shardtool.dataset.shard_file import ChecksummedFile, CompressedFile, ShardFile, detect_kind, wrong_kind_error
from shardtool.errors import (
    CorruptShard,
    printable,
)
from shardtool.fingerprint import content_digest, crc32c
from shardtool.format import tar_read, tfrecord_read
from shardtool.names import MAX_FIELDS, is_utf8, quote_name
from shardtool.values import BLOCK_BYTES, Dots, FeatureType

if TYPE_CHECKING:
    from collections.abc import Sequence


def interleaved_samples(keys: Sequence[bytes], fields: Sequence[frozenset[int]]) -> list[tuple[int, int]]:
    """Return the samples of a tar whose fields lie apart: the places of the first two parts of each.

    Where parts of one key share a field, it has samples of one key, and none is torn.

    Args:
        keys: The keys of the samples as they lie.
        fields: The fields of each.
    """
    first: dict[bytes, int] = {}
    torn: dict[bytes, tuple[int, int]] = {}
    known: dict[bytes, frozenset[int]] = {}
    for at, (key, names) in enumerate(zip(keys, fields, strict=True)):
        before = known.get(key, frozenset())
        if before & names:
            return []
        known[key] = before | names
        if first.setdefault(key, at) != at:
            torn.setdefault(key, (first[key], at))
    return [*torn.values()]


_FILE_NAME_FEATURE = b"image/filename"  # of TensorFlow's image sets


_KEY_FEATURES = (b"__key__", b"key", b"__key", _FILE_NAME_FEATURE)


_FILE_SUFFIX = re.compile(rb"(?<=[^/])\.[A-Za-z0-9]{1,8}$")  # of a file's name, which is no part of its key


_RECORD_SUFFIX = re.compile(r"\.tfrecords?|\.(?:gz|bz2|xz|zst)$", re.IGNORECASE)


_MAX_KEY_BYTES = 2**20  # bytes: more is an attack, not a key; another feature that could be one is then none


_NO_END = 2**63


# What a walk keeps, in bytes: columns, names and keys; and how much of that a shard may ask for. A plain shard that a
# tool wrote needs about its own bytes at most. A compressed one is up to a thousand times as large as its file, but
# only if it holds nothing: reading it must not cost that.
_BYTES_PER_FIELD, _BYTES_PER_SAMPLE, _BYTES_PER_NAME = 48, 128, 256


_BASE_MEMORY_BYTES = 2**27


_MEMORY_PER_BYTE = 8


_MEMORY_PER_COMPRESSED_BYTE = 128


_MEMORY_CHECK_BYTES = 2**22  # bytes of a shard, after which it is looked at


_MAX_VARINT_BYTES = 11  # bytes: no number takes so many


_MAX_FIELD_NAMES = 2**16  # of fields, that the fingerprint's columns can distinguish


_MAX_LISTED_DAMAGE = 100  # of a kind of damage in one shard: the rest says nothing new


class ShardScanTask(NamedTuple):
    """A shard to look at.

    Attributes:
        path: The path of the shard.
        checksum: Whether payloads are read, for their CRC-32C and that of the file.
        dots: Where the key of a member's name ends.
        salvage: Whether the walk goes on behind damage, with the samples that are whole.
    """

    path: str
    checksum: bool = False
    dots: Dots = "first"
    salvage: bool = False


class UnrecognisedMember(NamedTuple):
    """A member of a tar that is no part of a sample.

    Attributes:
        offset: Where its header starts.
        name: Without `./` before it, so that of a tar's top folder is empty.
        is_file: Whether it is a plain file.
        kind: Its type, as its header has it.
        link: Where it leads, of a link.
    """

    offset: int
    name: bytes
    is_file: bool
    kind: bytes = b"0"
    link: bytes = b""

    @property
    def what(self) -> str:
        """Say it in words."""
        return f"{printable(self.name) or './'}: {'a name without a field' if self.is_file else 'no plain file'}"


class FeatureConflict(NamedTuple):
    """The first feature of a name that is a list, or of another kind than before: its sample, kind, and values."""

    sample: int
    kind: FeatureType
    values: int


@dataclass(slots=True)
class ShardScan:
    """The content of a shard, as columns.

    Attributes:
        path: The path of the shard.
        format: `tar` or `tfrecord`.
        size: Bytes of the file; -1 where it is compressed: offsets then count in what it holds.
        keys: One per sample.
        starts: int64 per sample, where its first record starts.
        sizes: int64 per sample, bytes of its records, padding included.
        counts: uint32 per sample, fields.
        names: The field names that `codes` stands for.
        codes: uint32 per field.
        kinds: For each of `names`: `bytes`, `int64` or `float`.
        offsets: int64 per field, where its payload starts.
        lengths: int64 per field, bytes of the payload.
        crcs: uint32 per field; empty without checksums.
        crc: CRC-32C of the file, where checksums were asked for.
        soiled: The first places where padding is not zero, where checksums were asked for.
        digest: The content fingerprint, if asked for; None: unknown, since a float's text is not stored.
        text_rows: uint64, the rows of fields that are a single whole number, where checksums were asked for.
        text_lengths: uint8 for each of these, bytes of the number's text.
        text_crcs: uint32 for each of these, the CRC-32C of the number's text.
        odd: Members that are no part of a sample, such as folders.
        differ: Place and kind of what readers of tars do not read alike; the first ones only.
        unlike: In a TFRecord, a field's code to the first feature of it that is of another kind, or else to the first
            that is no single value.
        whole: Rows of a TFRecord's fields whose payload is all that a list holds: see `tfrecord.Feature`.
        error: Where the walk ended too early; what stands before it is here.
        lost: The parts of the shard that could not be read, where the walk went on behind them.
        broken: The samples that are not whole for that, which are not among the others: place, key and reason.
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
    odd: list[UnrecognisedMember] = field(default_factory=list)
    differ: list[tuple[int, str]] = field(default_factory=list)
    unlike: dict[int, FeatureConflict] = field(default_factory=dict)
    whole: array[int] = field(default_factory=lambda: array("Q"))
    error: CorruptShard | None = None
    lost: list[LostRange] = field(default_factory=list)
    broken: list[tuple[int, bytes, str]] = field(default_factory=list)
    _known: dict[bytes, int] = field(default_factory=dict, repr=False)

    def code(self, name: bytes, kind: FeatureType = "bytes") -> int:
        """Return the number of a field's name."""
        code = self._known.setdefault(name, len(self.names))
        if code == len(self.names):
            self.names.append(name)
            self.kinds.append(kind)
        return code

    def fields(self) -> list[frozenset[int]]:
        """Return the codes of the fields of each sample."""
        return [frozenset(self.codes[first:end]) for first, end in pairwise([0, *accumulate(self.counts)])]


def scan_shard(task: ShardScanTask) -> ShardScan:
    """Walk a shard; a damaged one up to the damage.

    Raises:
        CorruptShard: It cannot be opened.
        InvalidRequest: Its name has the ending of no format.
    """
    kind = detect_kind(task.path)
    plain = ChecksummedFile if task.checksum and not task.salvage else ShardFile
    with CompressedFile(task.path, kind.packing) if kind.packing else plain(task.path) as shard:
        found = ShardScan(task.path, kind.format, shard.size)
        try:
            if found.format == "tar":
                _scan_tar(shard, task, found)
            else:
                _scan_tfrecord(shard, task, found)
        except CorruptShard as error:
            found.error = error if found.keys else wrong_kind_error(task.path, error)
        if isinstance(shard, ChecksummedFile):
            try:
                found.crc = shard.crc()
            except CorruptShard as error:
                found.error = found.error or error
    if found.lost and found.format == "tar":
        _drop_incomplete(found, task.dots)
    if task.checksum and "float" not in found.kinds and len(found.names) <= _MAX_FIELD_NAMES:
        found.digest = _content_digest(found)
    return found


def _drop_incomplete(found: ShardScan, dots: Dots) -> None:
    """Take the samples out that are not whole, for a part of the shard is lost."""
    bounds, broken = [0, *accumulate(found.counts)], _incomplete_samples(found, dots)
    found.broken = [(found.starts[at], found.keys[at], reason) for at, reason in broken.items()]
    kept = [at for at in range(len(found.keys)) if at not in broken]
    rows = [row for at in kept for row in range(bounds[at], bounds[at + 1])]
    found.keys = [found.keys[at] for at in kept]
    of_fields = ("codes", "offsets", "lengths", *(("crcs",) if found.crcs else ()))
    for names, which in ((("starts", "sizes", "counts"), kept), (of_fields, rows)):
        for name in names:
            column = getattr(found, name)
            setattr(found, name, array(column.typecode, [column[at] for at in which]))


def _incomplete_samples(found: ShardScan, dots: Dots) -> dict[int, str]:
    """Return the samples of a tar that are not whole, and why."""
    fields, size, near, broken = found.fields(), found.size, dict[int, str](), dict[int, str]()
    for one in found.lost:
        before, behind = bisect_left(found.starts, one.start) - 1, bisect_right(found.starts, one.end - 1)
        for at in [before] if one.end < 0 else [before, behind]:
            if 0 <= at < len(found.keys):
                near[at] = f"next to what is lost at {one.start:,}"
                if found.keys[at] == _split_name(one.name, dots)[0] or (size < 0 and one.end < 0):
                    broken[at] = f"{near[at]}: {FIELDS_MAY_BE_LOST}"
    for at, last in enumerate(accumulate(found.counts)) if size >= 0 else ():
        if (end := found.offsets[last - 1] + found.lengths[last - 1]) > size:  # of its last payload
            broken[at] = f"the file ends in it: {end - size:,} bytes are not there"
    usual = frozenset().union(*(names for at, names in enumerate(fields) if at not in broken))
    for at, place in near.items():
        if at not in broken and not fields[at] >= usual:
            broken[at] = f"{place}: {FIELDS_MAY_BE_LOST}"
    return dict(sorted(broken.items()))


def _split_name(name: bytes, dots: Dots) -> tuple[bytes, bytes]:
    """Return the key and the field in a member's name; no field where it names none."""
    name = name.removeprefix(b"./")
    base = name.rfind(b"/") + 1
    at = name.find(b".", base + 1) if dots == "first" else name.rfind(b".", base + 1)
    return (name, b"") if at < 0 else (name[:at], name[at + 1 :])


def _content_digest(found: ShardScan) -> int:
    """Return the content fingerprint: fields in the order of their names, of numbers their text."""
    lengths, crcs, codes = array("Q", found.lengths), array("I", found.crcs), array("H", found.codes)
    for row, length, crc in zip(found.text_rows, found.text_lengths, found.text_crcs, strict=True):
        lengths[row], crcs[row] = length, crc
    rank = {code: place for place, code in enumerate(sorted(range(len(found.names)), key=found.names.__getitem__))}
    ordered: dict[bytes, list[int] | None] = {}  # a sample's codes to their order; None where that is theirs already
    end = 0
    for count in found.counts:
        first, end = end, end + count
        seen = codes[first:end].tobytes()
        if seen not in ordered:
            ranks = [rank[code] for code in codes[first:end]]
            wanted = sorted(range(count), key=ranks.__getitem__)
            ordered[seen] = None if wanted == [*range(count)] else wanted
        order = ordered[seen]
        if order is not None:
            for column in (lengths, crcs, codes):
                column[first:end] = array(column.typecode, [column[first + at] for at in order])
    columns = {"codes": codes.tobytes(), "lengths": lengths.tobytes(), "crcs": crcs.tobytes()}
    return content_digest(found.keys, found.counts, found.names, **columns)


def index_text(name: bytes) -> str:
    """Return a key or field of a shard as its index has it: as it is, and percent-encoded where it is no UTF-8."""
    return name.decode() if is_utf8(name) else quote_name(name)


def payload_crc(shard: ShardFile | CompressedFile, offset: int, length: int) -> int:
    """Return the CRC-32C of a part of a shard, however long it is."""
    crc = 0
    while length > 0 and (block := shard.read(offset, min(length, BLOCK_BYTES))):
        crc = crc32c(block, crc)
        offset += len(block)
        length -= len(block)
    return crc


class _ScanMemory:
    """Sees that a walk keeps no more than its shard may ask for: see `_KEPT_ALWAYS`."""

    def __init__(self, shard: ShardFile | CompressedFile, found: ShardScan) -> None:
        self._found = found
        packed = shard.packed_size if isinstance(shard, CompressedFile) else None
        self._most = _NO_END if packed is None else _MEMORY_PER_COMPRESSED_BYTE * packed
        self._texts = self._keys = self._names = self._odd = self._rows = 0
        self._long = False  # whether a field's name is: then it counts each time, as tables hold it each time

    def look(self, end: int) -> int:
        """Look at what is kept of a shard up to `end`; return where to look again.

        Raises:
            CorruptShard: It is too much, or a sample has too many fields.
        """
        found = self._found
        self._texts += sum(map(len, found.keys[self._keys :])) + sum(map(len, found.names[self._names :]))
        self._texts += sum(len(one.name) + len(one.link) for one in found.odd[self._odd :])
        if found.counts and (most := max(found.counts[max(0, self._keys - 1) :], default=0)) > MAX_FIELDS:
            at = found.starts[found.counts.index(most)]
            expected = f"at most {MAX_FIELDS:,}"
            raise CorruptShard(found.path, f"a sample of {most:,} fields", offset=at, expected=expected)
        self._long = self._long or any(len(name) > _BYTES_PER_NAME for name in found.names[self._names :])
        if self._long:
            self._texts += sum([len(found.names[code]) for code in found.codes[self._rows :]])
        self._rows = len(found.codes)
        self._keys, self._names, self._odd = len(found.keys), len(found.names), len(found.odd)
        kept = self._texts + _BYTES_PER_FIELD * self._rows + _BYTES_PER_SAMPLE * self._keys
        kept += _BYTES_PER_NAME * (self._names + self._odd)
        if kept > _BASE_MEMORY_BYTES + min(self._most, _MEMORY_PER_BYTE * end):
            what = f"{self._keys:,} samples, {self._rows:,} fields and {self._names:,} names of fields"
            expected = "payloads, not names alone"
            raise CorruptShard(found.path, f"{what}, more than can be kept", offset=end, expected=expected)
        return end + _MEMORY_CHECK_BYTES


def _scan_tar(  # noqa: C901 - one loop over every header, the hot path
    shard: ShardFile | CompressedFile, task: ShardScanTask, found: ShardScan
) -> None:
    """Note each member: a loop over every header, so its names are at hand."""
    last: bytes | None = None
    fields: dict[bytes, int] = {}
    keys, starts, sizes, counts = found.keys, found.starts, found.sizes, found.counts
    codes, offsets, lengths, first_dot = found.codes, found.offsets, found.lengths, task.dots == "first"
    checksum = task.checksum
    kept, size_limit = _ScanMemory(shard, found), found.size if found.size >= 0 else _NO_END
    look_at, end = min(_MEMORY_CHECK_BYTES, size_limit), 0

    def note(offset: int, what: str) -> None:
        if len(found.differ) < _MAX_LISTED_DAMAGE:
            found.differ.append((offset, what))

    walk = (
        salvage_members(shard, note, found.lost)
        if task.salvage
        else tar_read.iter_members(shard.read, shard.path, note)
    )
    for path, offset, start, size, is_plain, end, kind, link in walk:
        name = path.removeprefix(b"./")
        base = name.rfind(b"/") + 1
        at = name.find(b".", base + 1) if first_dot else name.rfind(b".", base + 1)
        if not is_plain or at < 0 or at == len(name) - 1:
            found.odd.append(UnrecognisedMember(offset, name, is_plain, kind, link))
            last = None
            if end > look_at:
                look_at = min(kept.look(end), size_limit)
            continue
        key, ending = name[:at], name[at + 1 :]
        if key != last:
            keys.append(key)
            starts.append(offset)
            sizes.append(0)
            counts.append(0)
            last = key
        try:
            codes.append(fields[ending])
        except KeyError:
            codes.append(fields.setdefault(ending, found.code(ending)))
        counts[-1] += 1
        offsets.append(start)
        lengths.append(size)
        sizes[-1] = end - starts[-1]
        if checksum:
            _checksum_member(shard, found, start, size, end)
        if end > look_at:
            if end > size_limit and not task.salvage:
                cut = f"the file ends in {printable(name)}, {size:,} bytes long"
                raise CorruptShard(shard.path, cut, offset=start, remedy=tar_read.DAMAGED_TAR_ADVICE)
            look_at = min(kept.look(end), size_limit)
    kept.look(end)


def _checksum_member(shard: ShardFile | CompressedFile, found: ShardScan, start: int, size: int, end: int) -> None:
    """Note the checksum of a payload, and whether what follows it up to `end` is not zero."""
    if size <= BLOCK_BYTES:
        block = shard.read(start, end - start)
        found.crcs.append(crc32c(block[:size]))
        rest = block[size:]
    else:
        found.crcs.append(payload_crc(shard, start, size))
        rest = shard.read(start + size, end - start - size)
    if bytes(rest) != bytes(len(rest)) and len(found.nonzero_padding) < _MAX_LISTED_DAMAGE:
        found.nonzero_padding.append(start + size)


def _scan_tfrecord(shard: ShardFile | CompressedFile, task: ShardScanTask, found: ShardScan) -> None:
    # The shard's name without its ending, as it can be part of a key.
    stem = os.fsencode(_RECORD_SUFFIX.sub("", os.path.basename(shard.path)).replace(".", "_"))
    kept, look_at = _ScanMemory(shard, found), _MEMORY_CHECK_BYTES
    hold = shard.hold if isinstance(shard, CompressedFile) else None
    walk = (
        salvage_records(shard, hold, found.lost)
        if task.salvage
        else tfrecord_read.iter_records(shard.read, shard.path, hold)
    )
    for number, record in enumerate(walk):
        if record.offset > look_at:
            look_at = kept.look(record.offset)
        try:
            _add_record(shard, task, found, record, b"%b/%09d" % (stem, number))
        except CorruptShard as error:
            if not task.salvage:
                raise
            found.lost.append(LostRange(record.offset, record.end, error_text(error)))


def _add_record(
    shard: ShardFile | CompressedFile,
    task: ShardScanTask,
    found: ShardScan,
    record: tfrecord_read.TFRecord,
    no_key: bytes,
) -> None:
    """Note a record; `no_key` is its key where none is given: these differ from those of other shards."""
    held = record.size <= tfrecord_read.MAX_HELD_RECORD_BYTES
    data = shard.read(record.data, record.size) if held else tfrecord_read.LazyBytes(shard.read, record)
    if task.checksum:
        crc = crc32c(data) if not isinstance(data, tfrecord_read.LazyBytes) else payload_crc(shard, *record[1:3])
        tfrecord_read.check_record_crc(record, crc, shard.path)
    features = tfrecord_read.parse_features(data, record.data, shard.path)
    key_feature, key = _key_feature(features, shard.path), no_key
    if key_feature is not None and key_feature.kind == "bytes" and key_feature.values == 1:
        at = key_feature.offset - record.data
        key = bytes(data[at : at + key_feature.size])
        if key_feature.name == _FILE_NAME_FEATURE:
            key = _FILE_SUFFIX.sub(b"", key)
    number = len(found.keys)
    found.keys.append(key)
    found.starts.append(record.offset)
    found.sizes.append(record.end - record.offset)
    rest = [feature for feature in features if feature is not key_feature or feature.name != b"__key__"]
    found.counts.append(len(rest))
    for feature in sorted(rest, key=lambda one: one.name):
        code = found.code(feature.name, feature.kind)
        if feature.values != 1 or feature.kind != found.kinds[code]:
            _note_conflict(found, number, code, feature)
        found.codes.append(code)
        found.offsets.append(feature.offset)
        found.lengths.append(feature.size)
        if task.checksum:
            _checksum_feature(shard, found, data, record, feature)


def _checksum_feature(
    shard: ShardFile | CompressedFile,
    found: ShardScan,
    data: tfrecord_read.Data,
    record: tfrecord_read.TFRecord,
    feature: tfrecord_read.ExampleFeature,
) -> None:
    """Note the checksum of a payload and, of a single whole number, that of its text."""
    at = feature.offset - record.data
    if isinstance(data, tfrecord_read.LazyBytes):
        found.crcs.append(payload_crc(shard, feature.offset, feature.size))
    else:
        found.crcs.append(crc32c(data[at : at + feature.size]))
    if feature.kind != "int64" or feature.values != 1:
        return
    value = tfrecord_read.decode_single_int(data[at : at + min(feature.size, _MAX_VARINT_BYTES)])
    if value is not None:
        text = b"%d" % value
        found.text_rows.append(len(found.crcs) - 1)
        found.text_lengths.append(len(text))
        found.text_crcs.append(crc32c(text))


def _key_feature(features: list[tfrecord_read.ExampleFeature], where: str) -> tfrecord_read.ExampleFeature | None:
    """Return the feature that is the key of a record; None where there is none, or only one that is far too long.

    Raises:
        CorruptShard: The feature that can be nothing but the key is far too long.
    """
    by_name = {feature.name: feature for feature in features}
    for found in (by_name[name] for name in _KEY_FEATURES if name in by_name):
        if found.size <= _MAX_KEY_BYTES:
            return found
        if found.name == _KEY_FEATURES[0]:
            what, expected = f"a key of {found.size:,} bytes", f"at most {_MAX_KEY_BYTES:,}"
            raise CorruptShard(
                where, what, offset=found.offset, expected=expected, remedy=tfrecord_read.DAMAGED_TFRECORD_ADVICE
            )
    return None


def _note_conflict(found: ShardScan, sample: int, code: int, feature: tfrecord_read.ExampleFeature) -> None:
    """Note a feature that is a list, or of another kind than the first of its name, before its row is."""
    before, kind = found.unlike.get(code), found.kinds[code]
    if before is None or (before.kind == kind and feature.kind != kind):
        found.unlike[code] = FeatureConflict(sample, feature.kind, feature.values)
    if feature.whole:  # then its values are never just one
        found.whole.append(len(found.codes))
