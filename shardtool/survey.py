"""What lies in one shard, found by walking it: runs in a worker, for shards made by any tool.

A sample is a run of members with one key (WebDataset's rule, `./` before a name not counted), or one record
of a TFRecord file. Payloads are read only where checksums are asked for.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardtool.checksum import content_digest, crc32c
from shardtool.errors import CorruptShard, printable
from shardtool.format import tar_walk, tfrecord_walk
from shardtool.reading import open_shard, shard_format

if TYPE_CHECKING:
    from shardtool.reading import PackedFile, ShardFile
    from shardtool.sample import Dots

_KEY_FEATURES = (b"__key__", b"key", b"__key", b"image/filename")
_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class SurveyTask:
    """A shard to look at.

    Attributes:
        path: Of the shard.
        checksum: Whether payloads are read, for their CRC-32C and that of the file.
        dots: Where the key of a member's name ends.
    """

    path: str
    checksum: bool = False
    dots: Dots = "first"


@dataclass(slots=True)
class Survey:
    """What lies in a shard, as columns.

    Attributes:
        path: Of the shard.
        format: `tar` or `tfrecord`.
        size: Bytes of the file; -1 where it is compressed: offsets then count in what it holds.
        keys: One a sample.
        starts: int64 a sample, where its first record starts.
        sizes: int64 a sample, bytes of its records, padding included.
        counts: uint32 a sample, fields.
        names: The field names that `codes` stands for.
        codes: uint32 a field.
        kinds: Of each of `names`: `bytes`, `int64` or `float`.
        offsets: int64 a field, where its payload starts.
        lengths: int64 a field, bytes of the payload.
        crcs: uint32 a field; empty without checksums.
        crc: CRC-32C of the file, where checksums were asked for.
        digest: The content fingerprint, likewise; None where it cannot be told, since a float's text is not stored.
        texts: Row of a field to the text of its number, where checksums were asked for.
        odd: (offset, what): members that are no part of a sample, such as folders.
        error: Where the walk ended too early; what stands before it is told.
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
    kinds: list[str] = field(default_factory=list)
    offsets: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    crcs: array[int] = field(default_factory=lambda: array("I"))
    crc: int | None = None
    digest: int | None = None
    texts: dict[int, bytes] = field(default_factory=dict)
    odd: list[tuple[int, str]] = field(default_factory=list)
    error: CorruptShard | None = None

    def code(self, name: bytes, kind: str = "bytes") -> int:
        """Return the number of a field's name."""
        try:
            return self.names.index(name)
        except ValueError:
            self.names.append(name)
            self.kinds.append(kind)
            return len(self.names) - 1


def survey(task: SurveyTask) -> Survey:
    """Walk a shard; a damaged one is told of up to the damage.

    Raises:
        CorruptShard: It cannot be opened.
        InvalidRequest: Its name tells no format.
    """
    with open_shard(task.path) as shard:
        found = Survey(task.path, shard_format(task.path), shard.size)
        try:
            if found.format == "tar":
                _survey_tar(shard, task, found)
            else:
                _survey_tfrecord(shard, task, found)
        except CorruptShard as error:
            found.error = error
        if task.checksum and found.size >= 0:
            found.crc = file_crc(shard)
    if task.checksum and "float" not in found.kinds:
        found.digest = _digest(found)
    return found


def _digest(found: Survey) -> int:
    """Return the content fingerprint: fields in the order of their names, of numbers their text."""
    rank = {code: place for place, code in enumerate(sorted(range(len(found.names)), key=found.names.__getitem__))}
    rows, end = [], 0
    for count in found.counts:
        first, end = end, end + count
        rows += sorted(range(first, end), key=lambda row: rank[found.codes[row]])
    texts = found.texts
    lengths = array("Q", [len(texts[row]) if row in texts else found.lengths[row] for row in rows])
    crcs = array("I", [crc32c(texts[row]) if row in texts else found.crcs[row] for row in rows])
    codes = array("H", [found.codes[row] for row in rows])
    return content_digest(
        found.keys, found.counts, found.names,
        codes=codes.tobytes(), lengths=lengths.tobytes(), crcs=crcs.tobytes(),
    )  # fmt: skip


def file_crc(shard: ShardFile | PackedFile) -> int:
    """Return the CRC-32C of a whole shard."""
    crc = offset = 0
    while block := shard.read(offset, _BLOCK):
        crc = crc32c(block, crc)
        offset += len(block)
    return crc


def payload_crc(shard: ShardFile | PackedFile, offset: int, length: int) -> int:
    """Return the CRC-32C of a part of a shard, however long it is."""
    crc = 0
    while length > 0 and (block := shard.read(offset, min(length, _BLOCK))):
        crc = crc32c(block, crc)
        offset += len(block)
        length -= len(block)
    return crc


def _survey_tar(shard: ShardFile | PackedFile, task: SurveyTask, found: Survey) -> None:
    """Note each member: a loop over every header, so its names are at hand."""
    last: bytes | None = None
    fields: dict[bytes, int] = {}
    keys, starts, sizes, counts = found.keys, found.starts, found.sizes, found.counts
    codes, offsets, lengths, first_dot = found.codes, found.offsets, found.lengths, task.dots == "first"
    for member in tar_walk.walk(shard.read, shard.path):
        name = member.name[2:] if member.name[:2] == b"./" else member.name
        folder, slash, base = name.rpartition(b"/")
        at = base.find(b".", 1) if first_dot else base.rfind(b".")
        if not member.is_file or at < 1 or at == len(base) - 1:
            what = "no plain file" if not member.is_file else "a name without a field"
            found.odd.append((member.offset, f"{printable(member.name)}: {what}"))
            last = None
            continue
        key, ending = folder + slash + base[:at], base[at + 1 :]
        if key != last:
            keys.append(key)
            starts.append(member.offset)
            sizes.append(0)
            counts.append(0)
            last = key
        try:
            codes.append(fields[ending])
        except KeyError:
            codes.append(fields.setdefault(ending, found.code(ending)))
        counts[-1] += 1
        offsets.append(member.data)
        lengths.append(member.size)
        sizes[-1] = member.end - starts[-1]
        if task.checksum:
            found.crcs.append(payload_crc(shard, member.data, member.size))
        if found.size >= 0 and member.end > found.size:
            cut = f"at {member.data:,}: the file ends in {printable(member.name)}, {member.size:,} bytes long"
            raise CorruptShard(shard.path, cut, remedy=tar_walk.REMEDY)


def _survey_tfrecord(shard: ShardFile | PackedFile, task: SurveyTask, found: Survey) -> None:
    for number, record in enumerate(tfrecord_walk.walk(shard.read, shard.path)):
        data = shard.read(record.data, record.size)
        if task.checksum:
            tfrecord_walk.check_data(record, data, shard.path)
        features = tfrecord_walk.features(data, record.data, shard.path)
        by_name = {feature.name: feature for feature in features}
        key_feature = next((by_name[name] for name in _KEY_FEATURES if name in by_name), None)
        key = b"%09d" % number
        if key_feature is not None and key_feature.kind == "bytes" and key_feature.values == 1:
            at = key_feature.offset - record.data
            key = bytes(data[at : at + key_feature.size])
        found.keys.append(key)
        found.starts.append(record.offset)
        found.sizes.append(record.end - record.offset)
        rest = [feature for feature in features if feature is not key_feature or feature.name != b"__key__"]
        found.counts.append(len(rest))
        for feature in sorted(rest, key=lambda one: one.name):
            found.codes.append(found.code(feature.name, feature.kind))
            found.offsets.append(feature.offset)
            found.lengths.append(feature.size)
            if task.checksum:
                at = feature.offset - record.data
                value = data[at : at + feature.size]
                found.crcs.append(crc32c(value))
                if feature.kind == "int64" and feature.values == 1:
                    found.texts[len(found.crcs) - 1] = b"%d" % _int64(value)


def _int64(value: bytes | memoryview) -> int:
    """Return the number that a single varint stands for."""
    number = sum((byte & 127) << 7 * at for at, byte in enumerate(value)) % 2**64
    return number - 2**64 if number >= 2**63 else number
