"""Index files of other tools: what they are made of, which files are such, and whether one fits its shard.

Rows in, bytes out: but for the hashes of a shard, no file is opened here. Each index is held against the tool that
makes it and the tool that reads it, in tests/clients.

Whoever made one, it leads into the bytes of one shard, which its name says; most readers return what lies at its
offsets, also in another shard's bytes, and report no error. A file is taken for an index only where its start has the
form of one: a user's own file of such a name is none.

Source: the tools' own modules, named below; docs/format.md, "Exported indexes".
"""

from __future__ import annotations

import glob
import json
import re
import struct
from array import array
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha1, sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, machine_reads, printable, reason
from shardtool.fingerprint import crc32c
from shardtool.pattern import OPEN_CLIP_FILE, SIDECAR_SUFFIX, TIMM_FILE, format_of, is_packed_name, sidecar_name
from shardtool.storage.places import is_file, open_file, read_small
from shardtool.values import BLOCK, local_name
from shardtool.wording import either, exporting, flag

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.dataset.shard_index import ShardIndex

    Fields = list[tuple[bytes, int, int]]  # of a sample: each one's name, offset and length


# The hashes that other tools want of a shard and of every payload in it: one pass over its bytes, in a worker.


_SHA256_SIZE = 32


class DigestTask(NamedTuple):
    """A shard to be hashed.

    Attributes:
        path: Where it is.
        size: Its bytes.
        starts: int64 per payload: where it starts, in the order of the file.
        stops: int64 per payload: where it ends; none reaches into the next.
    """

    path: str
    size: int
    starts: bytes
    stops: bytes

    @classmethod
    def of(cls, path: str, size: int, index: ShardIndex) -> DigestTask:
        """Return the task of a shard whose samples lie as an index says."""
        return cls(path, size, index.offsets.tobytes(), (index.offsets + index.lengths).tobytes())


class Digests(NamedTuple):
    """The hashes of a shard.

    Attributes:
        crc: CRC-32C of the file.
        git: What git calls the file: the SHA-1 of a blob, in hex.
        sha256: Of the file, in hex.
        payloads: SHA-256 of each payload, 32 bytes, in the order of the task: of a million, as texts they took 120 MB.
    """

    crc: int
    git: str
    sha256: str
    payloads: bytes

    def payload(self, number: int) -> str:
        """Return the SHA-256 of a payload, in hex."""
        return self.payloads[number * _SHA256_SIZE : (number + 1) * _SHA256_SIZE].hex()


def digest(task: DigestTask, report: Callable[[int, int], None]) -> Digests:
    """Return the hashes of a shard; `report` gets the bytes done.

    Raises:
        CorruptShard: It cannot be read, or has another size.
    """
    starts, stops = (array("q", part).tolist() for part in (task.starts, task.stops))
    crc = at = end = 0
    git, whole, part = sha1(b"blob %d\0" % task.size, usedforsecurity=False), sha256(), sha256()
    payloads = bytearray()
    view = memoryview(bytearray(BLOCK))
    try:
        with machine_reads(task.path), open_file(task.path) as file, file.stream() as stream:
            while got := stream.readinto(view):
                block, first, end = view[:got], end, end + got
                crc = crc32c(block, crc)
                git.update(block)
                whole.update(block)
                while at < len(starts) and starts[at] < end:
                    part.update(block[max(starts[at] - first, 0) : stops[at] - first])
                    if stops[at] > end:
                        break
                    payloads += part.digest()
                    part, at = sha256(), at + 1
                report(0, got)
    except OSError as error:
        raise CorruptShard(task.path, reason(error), expected="the shard") from None
    if end != task.size:
        raise CorruptShard(task.path, f"{end:,} bytes", expected=f"{task.size:,}, as the dataset file says")
    payloads += part.digest() * (len(starts) - at)  # empty ones at the very end
    return Digests(crc, git.hexdigest(), whole.hexdigest(), bytes(payloads))


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """A shard, as far as its index is made of it: where its samples lie, and its hashes, where these are wanted."""

    index: ShardIndex
    digests: Digests | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.index.fact.name

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.index.fact.size

    def samples(self) -> Iterator[tuple[bytes, Fields]]:
        """Yield the key and the fields of each sample."""
        index = self.index
        names = [name.encode() for name in index.names]
        columns = [[names[code] for code in index.codes.tolist()], index.offsets.tolist(), index.lengths.tolist()]
        fields = list(zip(*columns, strict=True))
        for key, (first, last) in zip(index.all_keys(), pairwise(index.firsts.tolist()), strict=True):
            yield key, fields[first:last]

    def places(self) -> list[tuple[int, int]]:
        """Return where each sample starts, and how many bytes it takes."""
        return list(zip(self.index.starts.tolist(), self.index.sizes.tolist(), strict=True))

    def limit(self) -> int:
        """Return how many bytes an index of it may have: more is none of it."""
        index, fields = self.index, Counter(self.index.codes.tolist())
        letters = int((index.key_sizes * index.counts).sum())
        letters += sum(count * len(index.names[code].encode()) for code, count in fields.items())
        return _HEAD_LIMIT + len(index.codes) * _FIELD_LIMIT + letters * _ESCAPED


_HEAD_LIMIT = 4096  # bytes of an index besides those of its fields
_FIELD_LIMIT = 1024  # bytes of an index that a field takes, its name aside
_ESCAPED = 6  # bytes that one byte of a name may take in JSON


# The indexes of Megatron-Energon: offsets beside each shard, and once a folder what to read as which split.
#
# With them energon opens the folder as it is: no `energon prepare`, no question asked. Samples are crude, a dict of
# bytes and what its decoder makes of them; a `dataset.yaml` of the user's says otherwise, and stays.
#
# Source: NVIDIA/Megatron-Energon, `megatron/energon/flavors/webdataset/{itar,metadata,config,prepare}.py`.


_FOLDER = ".nv-meta"
INFO_FILE = f"{_FOLDER}/.info.json"
SPLIT_FILE = f"{_FOLDER}/split.yaml"
DATASET_YAML = f"{_FOLDER}/dataset.yaml"
_CRUDE = b"__module__: megatron.energon\n__class__: CrudeWebdataset\n"
_SPLITS = ("train", "val", "test")  # `energon lint` wants all of them, empty ones too
_READ = re.compile(rb"(?!__[^/]*__(?:/|$))(?:.*/|)[^.]+[.][^/]*$")  # what its reader takes for a part of a sample
_NO_NAME = re.compile(r'[\x00-\x1f\x7f-\x9f"\\{}\u2028\u2029\ud800-\udfff]')  # its YAML reader resolves no escapes
_TAR_BLOCK = 512
_FIRST_LIMIT = 2**24  # where a tar's first sample may start: after a global header


def offsets_index(shard: IndexedShard) -> bytes:
    """Return `out-000000.tar.idx`: where each sample starts and where the last one ends, as uint64.

    Raises:
        InvalidRequest: A name that energon's reader passes over.
    """
    for key, fields in shard.samples():
        for field, *_ in fields:
            name = b"%b.%b" % (key, field)
            if not _READ.match(name):
                found = f"{printable(name)!r}, which energon passes over"
                raise InvalidRequest(shard.name, found, remedy=f"Pack the samples with {flag('portable')}.")
    places = shard.places()
    ends = [start for start, _ in places] + [sum(places[-1]) if places else 0]
    return struct.pack(f"<{len(ends)}Q", *ends)


def _has_offsets(head: bytes, size: int) -> bool:
    if size % 8 or len(head) < 2 * 8:
        return False
    first, second = struct.unpack("<QQ", head[:16])
    return first < min(second, _FIRST_LIMIT) and not first % _TAR_BLOCK and not second % _TAR_BLOCK


def folder_index(splits: Sequence[DatasetFile]) -> dict[str, bytes]:
    """Return the files in `.nv-meta` for the splits in a folder, the one by which energon knows it last.

    A dataset that was never split is `train`. Shards without a sample are
    left out: energon takes none.

    Raises:
        InvalidRequest: A shard or split has a name that cannot stand in energon's YAML.
    """
    counts: dict[str, int] = {}
    parts: dict[str, list[str]] = {name: [] for name in _SPLITS}
    for split in sorted(splits, key=_by_split):
        found = {shard.name: shard.samples for shard in split.shards if shard.samples}
        parts.setdefault(split.made.split or _TRAIN, []).extend(found)
        counts |= found
    lines = ["split_parts:"]
    for name, shards in parts.items():
        lines.append(f"  {_quoted(name)}:{'' if shards else ' []'}")
        lines += [f"  - {_quoted(shard)}" for shard in shards]
    return {
        DATASET_YAML: _CRUDE,
        SPLIT_FILE: "\n".join([*lines, ""]).encode(),
        INFO_FILE: json.dumps({"shard_counts": counts}, indent=2).encode() + b"\n",
    }


def _by_split(split: DatasetFile) -> tuple[int, str]:
    """Return a key that sorts the splits of a run: train, val, test, then others by name."""
    name = split.made.split
    return (_SPLITS.index(name) if name in _SPLITS else len(_SPLITS), name)


def _quoted(name: str) -> str:
    if _NO_NAME.search(name):
        expected = "one without quotes, backslashes and braces"
        raise InvalidRequest(exporting("energon"), f"the name {name!r}", expected=expected)
    return f'"{name}"'


# The indexes that DALI, and the `tfrecord` package, read beside a shard.
#
# Source: NVIDIA/DALI, `tools/wds2idx.py`, `tools/tfrecord2idx` and `ParseIndexFile` in
# `dali/operators/reader/loader/webdataset_loader.cc`; vahidk/tfrecord, `tfrecord/tools/tfrecord2idx.py`.


_SPACE = re.compile(rb"[\x00-\x20\x7f]")
_UNSAFE = re.compile(rb"[\x00-\x20\x7f%]")


def tfrecord_index(shard: IndexedShard) -> bytes:
    """Return what the `tfrecord2idx` of DALI and that of the `tfrecord` package write: `OFFSET SIZE` of each record."""
    return b"".join([b"%d %d\n" % place for place in shard.places()])


def webdataset_index(shard: IndexedShard) -> bytes:
    """Return what DALI's `wds2idx` writes, version 1.2: `FIELD OFFSET LENGTH NAME` of each field, a line per sample.

    Its reader ends a word at any white space. It takes a name for nothing but a label, so what is unsafe in one is
    percent-encoded.

    Raises:
        InvalidRequest: A field has white space in its name.
    """
    used = {shard.index.names[code].encode() for code in {*shard.index.codes.tolist()}}
    if unsafe := sorted(name for name in used if _SPACE.search(name)):
        found = f"white space in the field {printable(unsafe[0])!r}, which DALI's index cannot name"
        raise InvalidRequest(shard.name, found, remedy=f"Pack the samples with {flag('portable')}.")
    lines = [b"v1.2 %d\n" % len(shard.index)]
    for key, fields in shard.samples():
        safe = _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], key)
        words = [b"%b %d %d %b.%b" % (name, at, size, safe, name.replace(b"%", b"%25")) for name, at, size in fields]
        lines.append(b" ".join(words) + b"\n")
    return b"".join(lines)


def _fields_in_lines(data: bytes) -> list[Fields]:
    """Return the fields in DALI's index, of any tool: names of members are labels there, and version 1.1 has none."""
    head, *lines = data.removesuffix(b"\n").split(b"\n")
    version, count = head.split()
    step = 3 if version == b"v1.1" else 4
    if int(count) != len(lines):
        raise ValueError(count)
    samples = []
    for words in map(bytes.split, lines):
        if len(words) % step:
            raise ValueError(len(words))
        samples.append([(words[at], int(words[at + 1]), int(words[at + 2])) for at in range(0, len(words), step)])
    return samples


# How many samples each shard has, as trainers read it: timm's `_info.json`, and `sizes.json` of open_clip.
#
# Each is one file a folder, beside the shards. Without it the user has to count the samples for them.
#
# Source: huggingface/pytorch-image-models, `timm/data/readers/reader_wds.py`; mlfoundations/open_clip,
# `get_dataset_size`.


_TRAIN = "train"  # of a dataset without splits: what timm looks for


def timm_info(splits: Sequence[DatasetFile]) -> dict[str, bytes]:
    """Return `_info.json`: of each split its shards and their samples.

    Raises:
        InvalidRequest: timm would take a split's name for the name of shards.
    """
    found = {}
    check_timm_splits([split.made.split for split in splits])
    for split in sorted(splits, key=_by_split):
        name, counts = split.made.split or _TRAIN, [shard.samples for shard in split.shards]
        names = [shard.name for shard in split.shards]
        found[name] = {"name": name, "num_samples": sum(counts), "filenames": names, "shard_lengths": counts}
    return {TIMM_FILE: json.dumps({"splits": found}, indent=2).encode() + b"\n"}


def check_timm_splits(splits: Iterable[str]) -> None:
    """Check that timm finds the splits by their names.

    Raises:
        InvalidRequest: It would take one for the name of shards.
    """
    for name in splits:
        if "tar" in name or ".." in name:
            what = f"the split {name}, which timm takes for the name of shards"
            raise InvalidRequest(exporting("timm"), what, expected="names of splits without 'tar' and '..'")


def open_clip_sizes(splits: Sequence[DatasetFile]) -> dict[str, bytes]:
    """Return `sizes.json`: each shard of the folder to its samples."""
    counts = {shard.name: shard.samples for split in sorted(splits, key=_by_split) for shard in split.shards}
    return {OPEN_CLIP_FILE: json.dumps(counts, indent=2).encode() + b"\n"}


def _timm_pairs(info: Any) -> Iterator[tuple[object, object]]:
    for one in info["splits"].values():
        yield from zip(one["filenames"], one["shard_lengths"], strict=True)


# What `load_dataset(folder)` makes of a folder, and the `README.md` that names the files of its data.
#
# Without one it takes the most common ending among a folder's files for the data's: a single shard loses to its dataset
# file, and every name with `.tar` in it, such as `out-000000.tar.idx`, is taken for a tar.
#
# Source: datasets/{load,data_files}.py and datasets/packaged_modules/webdataset of datasets 5.2.


README = "README.md"
_SIGNED = re.compile(rb"<!-- shardtool crc32c:([0-9a-f]{8}): .*-->\n")
_PATH = re.compile(r'^    (?:path: |- )("(?:[^"\\]|\\.)*")$', re.MULTILINE)
_SPLIT_NAME = re.compile(r"\w+(?:\.\w+)*")  # that `load_dataset` takes
_NO_WORD = re.compile(r"\W")
_NOT_IN_YAML = re.compile("[\x7f-\xa0\u2028\u2029\ufeff]")
# What `load_dataset` ignores, and the endings that it has readers for, as far as they lie beside shards.
_IGNORED = ("README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")
_FAVOURITES = ("csv", "json", "jsonl", "arrow", "parquet")  # in the case of a draw, the last one first
_ENDINGS = ("txt", "tsv", "xml", "toml", "md", "zip", "jpg", "jpeg", "png", "mp3", "mp4", "pdf", "tar", *_FAVOURITES)
_VALIDATION, _TEST = ("validation", "valid", "dev", "val"), ("test", "testing", "eval", "evaluation")
_SPLIT_WORDS = (("train", "training"), _VALIDATION, _TEST)


def cure() -> str:
    """Return what to do in a folder that `load_dataset` misreads."""
    return f"{exporting('huggingface')} mends that"


def readme(splits: Sequence[DatasetFile], there: Iterable[str]) -> bytes:
    """Return a `README.md` that names the shards of each split of a dataset.

    Args:
        splits: Those that one run made, or one dataset.
        there: The names of all files in the folder: a pattern may match no other.

    Raises:
        InvalidRequest: Two splits would have the same name there.
    """
    names = {shard.name for split in splits for shard in split.shards} | set(there)
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    check_splits([split.made.split for split in splits])
    for split in sorted(splits, key=_by_split):
        paths = _paths([shard.name for shard in split.shards], names)
        lines.append(f"  - split: {split_name(split.made.split or _TRAIN)}")
        lines += [f"    path: {paths[0]}"] if len(paths) == 1 else ["    path:", *(f"    - {path}" for path in paths)]
    text = "\n".join([*lines, "---", "", ""]).encode()
    sign = b"made by `shardtool index --export huggingface`, and made again by it only while nothing here is changed"
    return text + b"<!-- shardtool crc32c:%08x: %b -->\n" % (crc32c(text), sign)


def split_name(split: str) -> str:
    """Return what a split is called there: letters, digits, underscores and dots."""
    return split if _SPLIT_NAME.fullmatch(split) else _NO_WORD.sub("_", split)


def check_splits(splits: Iterable[str]) -> None:
    """Check that no two splits get the same name there.

    Raises:
        InvalidRequest: Two would have the same.
    """
    used: dict[str, str] = {}
    for split in splits:
        if (other := used.setdefault(split_name(split), split)) != split:
            found = f"the splits {other} and {split} would both be {split_name(split)} there"
            raise InvalidRequest(exporting("huggingface"), found, expected="names that differ in letters and digits")


def is_ours(data: bytes) -> bool:
    """Tell whether a `README.md` is one that we wrote, unchanged since."""
    text, mark, _ = data.rpartition(b"<!-- shardtool ")
    match = _SIGNED.fullmatch(data[len(text) :])
    return bool(mark) and match is not None and match[1] == b"%08x" % crc32c(text)


def listed(data: bytes, names: Iterable[str]) -> set[str]:
    """Return those of `names` that a `README.md` of ours names as data, and what it names that is none of them."""
    found: set[str] = set()
    for pattern in map(json.loads, _PATH.findall(data.decode("utf-8", "replace"))):
        matching = {name for name in names if fnmatchcase(name, pattern)}
        found |= matching or {pattern}
    return found


def _paths(shards: Sequence[str], names: Collection[str]) -> list[str]:
    """Return what names just these files: a pattern where one does, as quoted YAML."""
    wanted = set(shards)
    first = re.fullmatch(r"(.*?)([0-9]+)(\D*)", shards[0], re.DOTALL)
    if first:
        for middle in ("*", "[0-9]" * len(first[2])):
            pattern = f"{glob.escape(first[1])}{middle}{glob.escape(first[3])}"
            if {name for name in names if fnmatchcase(name, pattern)} == wanted:
                return [_in_yaml(pattern)]
    return [_in_yaml(glob.escape(name)) for name in shards]


def _in_yaml(text: str) -> str:
    """Return a text as YAML that is JSON, too."""
    return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def misreading(names: Iterable[str]) -> str:
    """Return what `load_dataset` does to a folder of tar shards without a `README.md`; empty: it reads them.

    Args:
        names: The names of all files in the folder.
    """
    seen = [name for name in names if not name.startswith(".") and name not in _IGNORED and "." in name]
    words = [rf"(?:^|[-._ 0-9])(?:{'|'.join(one)})[-._ 0-9]" for one in _SPLIT_WORDS]
    splits = [[name for name in seen if re.search(one, name)] for one in words]
    for group in [one for one in splits if one] or [seen]:
        counts = Counter(ending.lower() for name in group for ending in name.split(".")[1:])
        known = {ending: counts[ending] for ending in _ENDINGS if counts[ending]}
        if not known:
            continue
        most = max(known, key=lambda one: (known[one], _FAVOURITES.index(one) if one in _FAVOURITES else -1, one))
        if most != "tar":
            example = min(name for name in group if most in name.lower().split(".")[1:])
            return f"takes {example} for the data, not the shards"
        if indexes := [name for name in group if "tar" in name.split(".")[1:-1]]:
            return f"takes {min(indexes)} for a tar, and fails"
    passed = [name for name in seen if name.endswith(".tar") and any(splits) and not any(name in one for one in splits)]
    return f"takes names for splits, and passes over {min(passed)}" if passed else ""


def hub_index(shard: IndexedShard) -> bytes:
    """Return what `hfutils.index.tar_create_index` writes: where each member lies, and hashes as the Hub has them."""
    digests = shard.digests
    if digests is None:
        raise TypeError("a shard that was not hashed")
    files = {
        name: {"offset": offset, "size": length, "sha256": digests.payload(at)}
        for at, (name, offset, length) in enumerate(_members(shard))
    }
    document = {"filesize": shard.size, "hash": digests.git, "hash_lfs": digests.sha256, "files": files}
    return json.dumps(document).encode()


def _members(shard: IndexedShard) -> Iterator[tuple[str, int, int]]:
    """Yield each member of a tar: name, offset and length."""
    for key, fields in shard.samples():
        for name, offset, length in fields:
            yield f"{key.decode()}.{name.decode()}", offset, length


def _hub_difference(data: bytes, shard: IndexedShard) -> str:
    document = json.loads(data)
    wanted = {name: (offset, length) for name, offset, length in _members(shard)}
    files: dict[str, dict[str, object]] = document["files"]
    found = {name: (one["offset"], one.get("size", one.get("length"))) for name, one in files.items()}
    if document.get("filesize", shard.size) != shard.size or found != wanted:
        return _OTHER
    if (digests := shard.digests) is None:
        return ""
    same = document.get("hash", digests.git) == digests.git
    same = same and document.get("hash_lfs", digests.sha256) == digests.sha256
    hashes = [(files[name].get("sha256"), digests.payload(at)) for at, name in enumerate(wanted)]
    same = same and all(one in (None, other) for one, other in hashes)
    return "" if same else "the hashes of other bytes"


# What exports there are.


class FolderIndex(NamedTuple):
    """Index files of which a folder has one set, shared by all splits of a dataset.

    Attributes:
        encode: Returns their bytes by their paths in the folder, in the order in which they should appear.
        info: The one of them that lists the shards.
        pairs: Returns the shards that its JSON lists, and how many samples each has there.
        lasting: The one that is the user's to change: where it is there, it stays. Empty: there is none.
    """

    encode: Callable[[Sequence[DatasetFile]], dict[str, bytes]]
    info: str
    pairs: Callable[[Any], Iterable[tuple[object, object]]]
    lasting: str = ""

    def counts(self, info: bytes) -> dict[str, int]:
        """Return how many samples such a file gives for each shard, as far as it can be read; -1: no number."""
        try:
            return {str(name): count if type(count) is int else -1 for name, count in self.pairs(json.loads(info))}
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return {}


class Export(NamedTuple):
    """An index of another tool.

    Attributes:
        shard_format: `tar` or `tfrecord`: what it is an index of.
        reader: The tool.
        suffix: What the name of a shard's index ends with, in place of the shard's ending.
        encode: Returns the bytes of a shard's index; None: there is none.
        form: Tells, by the first bytes of a file and its size, whether it has the form of one.
        means: Tells whether the bytes of one that are not ours lead to the same places of a shard.
        least: Samples that a shard must hold for the tool to take its index.
        hashed: Whether it has hashes of payloads: then shards are read.
        once: What else there is, once a folder.
        readme: Whether a `README.md` that names the shards comes with it.
        note: What the user should know.
    """

    shard_format: str
    reader: str
    suffix: str = ""
    encode: Callable[[IndexedShard], bytes] | None = None
    form: Callable[[bytes, int], bool] = lambda _, __: False
    means: Callable[[bytes, IndexedShard], bool] = lambda _, __: False
    least: int = 0
    hashed: bool = False
    once: FolderIndex | None = None
    readme: bool = False
    note: str = ""


def _starts(pattern: bytes) -> Callable[[bytes, int], bool]:
    """Return what tells of the first bytes of a file, and its size, whether they are text of this form."""
    return lambda head, _: re.match(pattern, head) is not None


_OTHER = "the places of other samples"


_OF_RECORDS = (
    tfrecord_index, _starts(rb"\d{1,20} \d{1,20}\r?\n"),
    lambda data, shard: tfrecord_index(shard).split() == data.split(),
)  # fmt: skip
EXPORTS = {
    "dali-webdataset": Export(
        "tar", "DALI", ".idx", webdataset_index, _starts(rb"v1\.\d{1,3} \d{1,20}\r?\n"),
        lambda data, shard: _fields_in_lines(data) == [fields for _, fields in shard.samples()], least=1,
    ),
    "energon": Export(
        "tar", "energon", ".tar.idx", offsets_index, _has_offsets,
        once=FolderIndex(folder_index, INFO_FILE, lambda info: info["shard_counts"].items(), DATASET_YAML),
    ),
    "huggingface": Export(
        "tar", "the Hugging Face Hub", ".json", hub_index,
        _starts(rb'\s*\{\s*"(?:filesize|files|hash|hash_lfs)"\s*:'), hashed=True, readme=True,
    ),
    "timm": Export("tar", "timm", once=FolderIndex(timm_info, TIMM_FILE, _timm_pairs)),
    "open-clip": Export("tar", "open_clip", once=FolderIndex(open_clip_sizes, OPEN_CLIP_FILE, dict.items)),
    "wids": Export("tar", "wids", note="the dataset file is what wids wants: nothing to write"),
    "dali-tfrecord": Export("tfrecord", "DALI", ".idx", *_OF_RECORDS, least=1),
    "tfrecord": Export("tfrecord", "the tfrecord package", ".tfindex", *_OF_RECORDS, least=2),
}  # fmt: skip
ONCE = {name: export.once for name, export in EXPORTS.items() if export.once is not None}
HEAD_SIZE = 64  # bytes from the start of a file that show its form
LIST_LIMIT = 2**28  # bytes of a file that lists a folder's shards
_SUFFIXES = sorted({export.suffix for export in EXPORTS.values() if export.suffix}, key=len, reverse=True)


def wanted_exports(formats: Sequence[str], shard_format: str = "") -> dict[str, Export]:
    """Return the exports of these names.

    Args:
        formats: Their names.
        shard_format: The format of their shards; empty: not known yet.

    Raises:
        InvalidRequest: One is unknown, or an index of other shards.
    """
    for name in formats:
        if name not in EXPORTS:
            raise InvalidRequest(either("export", "--export"), repr(name), expected=f"one of {', '.join(EXPORTS)}")
        if shard_format and EXPORTS[name].shard_format != shard_format:
            others = [one for one, other in EXPORTS.items() if other.shard_format == shard_format]
            found = f"an index of {EXPORTS[name].shard_format} shards, and these are {shard_format}"
            raise InvalidRequest(exporting(name), found, expected=f"one of {', '.join(others)}")
    return {name: EXPORTS[name] for name in formats}


def index_name(shard: str, export: Export) -> str:
    """Return the name of a shard's index: `out-000000.idx` for `out-000000.tar`."""
    return local_name(sidecar_name(shard).removesuffix(SIDECAR_SUFFIX) + export.suffix)


def names_beside(shard: str, names: Collection[str]) -> list[str]:
    """Return those of `names` that may be indexes of a shard."""
    wanted = {index_name(shard, export) for export in EXPORTS.values() if export.suffix}
    return [] if is_packed_name(shard) else sorted(wanted.intersection(names))


def stems_of(name: str) -> list[str]:
    """Return the names, without their endings, of the shards that a file could be an index of, by its own name."""
    return [name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix) and name != suffix]


def form_of(name: str, head: bytes, size: int) -> str:
    """Return what a file is by its name and its start, as `--export` calls it; empty where it is no index.

    Args:
        name: The file's name.
        head: Its first bytes, `HEAD_SIZE` or all.
        size: How many it has.
    """
    for export, kind in EXPORTS.items():
        if kind.suffix and name.endswith(kind.suffix) and kind.form(head, size):
            return export
    return ""


def read_list(path: str) -> bytes:
    """Return a whole file; nothing where there is none, or it cannot be read, which a store may say of none, too."""
    try:
        return read_small(path, LIST_LIMIT) if is_file(path) else b""
    except (OSError, AccessRefused):
        return b""


def difference(export: str, data: bytes, shard: IndexedShard) -> str:
    """Return how an index differs from one of the shard; empty where readers find by it what lies there.

    Args:
        export: What the file is, as `form_of` returns it.
        data: Its bytes.
        shard: Its hashes are compared only where it has some.
    """
    found = EXPORTS[export]
    if found.encode is None or found.shard_format != (format_of(shard.name) or "tfrecord"):  # names need not tell
        return f"an index of {found.shard_format} shards"
    try:
        if found.hashed:
            return _hub_difference(data, shard)
        return "" if found.encode(shard) == data or found.means(data, shard) else _OTHER
    except InvalidRequest as error:
        return error.found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError):
        return _OTHER
