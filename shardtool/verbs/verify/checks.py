"""A dataset that is verified, and the checks: of one shard and its sidecar, of all together, and of names in folders.

A worker walks, sums and decodes a shard, and knows that alone. All else runs in the parent, over what workers found:
NumPy and pyarrow are imported by those checks that need them.
"""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate, chain, islice, repeat
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset import find
from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, read_dataset, shard_names
from shardtool.dataset.shard_file import OddMember, PackedFile, ShardFile, Survey, absence, open_shard, walked_text
from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, StoreFailed, listing, printable, reason
from shardtool.fingerprint import crc32c, show_fingerprint
from shardtool.format.tar import BLOCK
from shardtool.pattern import DATASET_SUFFIX, SIDECAR_SUFFIX, is_shard_name, sidecar_name, whole_of
from shardtool.storage import places
from shardtool.storage.places import is_url, is_web, join, names_in, plain_sizes, read_small
from shardtool.values import IMAGE_ENDINGS, RESERVED, Given, counted, is_utf8, output_text, to_bytes
from shardtool.verbs.verify.findings import MOST, Finding, Findings, finding_of
from shardtool.wording import call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.dataset.find import StoredDataset, StoredShard
    from shardtool.dataset.shard_index import ShardFact


# One shard examined in a worker: walked, summed, and where asked for decoded.


HASH_SIZE = 16
_LOW = 2**32 - 1  # what is kept of a length
_NUMBERS = frozenset({"cls", "cls2", "index", "inx", "id"})  # what webdataset's decoder takes for whole numbers
# Bytes of a payload that is decoded: it is held as a whole, and a compressed shard makes it of a thousandth of that.
IMAGE_LIMIT = 250_000_000  # its pixels are bounded too: see `transform.image.MAX_BYTES`
JSON_LIMIT = 8_000_000  # its objects take up to 22 times its bytes: `[],` is a list of 56 and its place
_NUMBER_LIMIT = 100  # digits
_WHOLE = re.compile(rb"[+-]?[0-9]+")  # readers take the text for an int: neither 3.5 nor 1e3 is one
_NUMBER_BYTES = 2**12  # with the white space around them


class Task(NamedTuple):
    """A shard to examine.

    Attributes:
        shard: The shard.
        decode: Whether payloads are decoded.
        classes: Field to how many classes its numbers stand for.
        contents: Whether it is known what samples hold.
    """

    shard: StoredShard
    decode: bool = False
    classes: Mapping[str, int] = {}
    contents: bool = False


@dataclass(slots=True)
class ShardExamination:
    """The result of walking a shard.

    Attributes:
        survey: What lies in it; None where it cannot be opened. Once it was checked, it is without columns.
        fields: How many samples have each field; none once they were added up: names may be many.
        odd: How many members are no part of a sample.
        hashes: The hash of each key, 16 bytes.
        contents: What each sample holds, where that was asked for: 8 bytes, of the CRC-32C and length of its largest
            payload.
        findings: What is wrong with payloads, the first ones.
        more: How many more of these there are, by code.
        undecoded: How many payloads were too large to be decoded.
        error: Why it cannot be opened; None where it can.
    """

    survey: Survey | None
    fields: Counter[str] = field(default_factory=Counter)
    odd: int = 0
    hashes: bytes = b""
    contents: bytes = b""
    findings: list[Finding] = field(default_factory=list)
    more: dict[str, int] = field(default_factory=dict)
    undecoded: int = 0
    error: CorruptShard | InvalidRequest | None = None


def examine(task: Task) -> ShardExamination:
    """Walk, sum and, where asked for, decode a shard; of a damaged one, what precedes the damage."""
    try:
        found = task.shard.survey(checksum=True)
    except StoreFailed as failed:
        if not failed.of_file:  # the machine's fault, or the network's, not the shard's
            raise
        return ShardExamination(None, error=CorruptShard(task.shard.path, failed.found))
    except (CorruptShard, InvalidRequest) as error:
        return ShardExamination(None, error=error)
    hashes = b"".join([blake2b(key, digest_size=HASH_SIZE).digest() for key in found.keys])
    contents = _contents(found) if task.contents else b""
    examined = ShardExamination(found, odd=len(found.odd), hashes=hashes, contents=contents)
    for code, count in Counter(found.codes).items():
        examined.fields[walked_text(found.names[code])] += count
    if task.decode:
        _decode(task, found, examined)
    return examined


def _contents(found: Survey) -> bytes:
    """Return what samples hold; the last one of a damaged shard may have lost payloads."""
    sums, row, payloads = array("Q"), 0, list(zip(found.lengths, found.crcs, strict=False))
    for count in found.counts:
        length, crc = max(payloads[row : row + count], default=(0, 0))
        sums.append((length & _LOW) << 32 | crc)
        row += count
    return sums.tobytes()


class _Check(NamedTuple):
    """The check of a field's payloads by decoding them.

    Attributes:
        code: The code of the finding about a payload that is wrong.
        decode: Returns what is wrong with a payload; empty: nothing is; None: it is too large to be decoded.
        limit: Bytes of the largest that is decoded.
        whole: Whether all of a payload is wanted; else its start shows that it is too long to be right.
    """

    code: str
    decode: Callable[[bytes], str | None]
    limit: int
    whole: bool = True


def _decode(task: Task, found: Survey, examined: ShardExamination) -> None:
    """Decode every field that has a decoder."""
    names = [walked_text(name) for name in found.names]
    pairs = zip(names, found.kinds, strict=True)
    checks = [_check_for(name, task.classes.get(name)) if kind == "bytes" else None for name, kind in pairs]
    if not any(checks):
        return
    row = 0
    with open_shard(task.shard.path) as shard:
        for key, count in zip(found.keys, found.counts, strict=True):
            rows = range(row, min(row + count, len(found.lengths)))
            for at in sorted(rows, key=found.offsets.__getitem__):  # a compressed shard is read in sequence only
                check, offset, length = checks[found.codes[at]], found.offsets[at], found.lengths[at]
                if check is None:
                    continue
                wrong = None if check.whole and length > check.limit else _wrong(check, shard, offset, length)
                if wrong is None:
                    examined.undecoded += 1
                elif wrong and len(examined.findings) >= MOST:
                    examined.more[check.code] = examined.more.get(check.code, 0) + 1
                elif wrong:
                    place = walked_text(key), names[found.codes[at]]
                    where = offset if found.size >= 0 else None
                    examined.findings.append(Finding(check.code, task.shard.name, wrong, "", where, *place))
            row += count


def _wrong(check: _Check, shard: ShardFile | PackedFile, offset: int, length: int) -> str | None:
    """Return what is wrong with a payload; empty: nothing is; None: it is too large to be decoded."""
    wanted = min(length, check.limit + 1)
    try:
        data = bytes(shard.read(offset, wanted))
    except CorruptShard:  # the walk has found it
        return ""
    return check.decode(data) if len(data) == wanted else ""


def _image(data: bytes) -> str | None:
    import warnings

    from shardtool.transform.image import BadImage, pixels

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pixels(data, exact=True)
    except BadImage as error:
        if error.code == "image-too-large" and error.__cause__ is None:  # not Pillow's word, but our bound of memory
            return None
        return "" if error.code == "image-depth" else error.message  # it is sound, whatever its values mean
    return ""


def _json(data: bytes) -> str:
    import json

    try:
        json.loads(data)
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return printable(str(error)) or type(error).__name__
    return ""


def _array(data: bytes) -> str:
    from shardtool.read.chain import read_npy

    try:
        read_npy(data)
    except (ValueError, TypeError, SyntaxError, LookupError, ArithmeticError, EOFError, RecursionError) as error:
        return printable(str(error)[:200]) or type(error).__name__
    return ""


def _number(data: bytes, classes: int | None) -> str:
    text = data.strip()
    if len(data) > _NUMBER_BYTES:
        return f"more than {_NUMBER_BYTES:,} bytes"
    if not _WHOLE.fullmatch(text) or len(text) > _NUMBER_LIMIT:
        return repr(printable(text[:40]))
    if classes is not None and not 0 <= int(text) < classes:
        return f"{printable(text)}, of {classes:,} classes"
    return ""


_DECODED = {
    "json": _Check("json-bad", _json, JSON_LIMIT),
    "npy": _Check("array-bad", _array, IMAGE_LIMIT),
    **dict.fromkeys(IMAGE_ENDINGS, _Check("image-bad", _image, IMAGE_LIMIT)),
}


def _check_for(name: str, classes: int | None) -> _Check | None:
    """Return how a field of that name is decoded; None: it can be anything."""
    ending = name.rpartition(".")[2].lower()
    if ending not in _DECODED and (classes is not None or ending in _NUMBERS):
        return _Check("number-bad", lambda data: _number(data, classes), _NUMBER_BYTES, whole=False)
    return _DECODED.get(ending)


# A dataset, and what is said of its shards.


_UNSAFE_PART = re.compile(rb"(?:^|/)\.\.(?:/|$)")
_PARQUET = b"PAR1"
_LISTED = ", as the dataset file says"
_HARD, _SYMBOLIC = b"1", b"2"  # types of members
_DEVICES = (b"3", b"4", b"6")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


@dataclass(slots=True)
class ShardCase:
    """One shard with all that is said of it.

    Attributes:
        shard: The shard, with its entry in the dataset file, unless there is none, or it is damaged.
        wanted: Whether a sidecar must be there.
        size: The shard's bytes; None where there is no such file.
        data: The sidecar's bytes; None where it is not there, or cannot be read.
        fact: What the sidecar says of its shard; None where it is damaged.
        examined: What a worker found; None where the shard was not read.
    """

    shard: StoredShard
    wanted: bool
    size: int | None = None
    data: bytes | None = None
    fact: ShardFact | None = None
    examined: ShardExamination | None = None

    @property
    def name(self) -> str:
        """The shard's name."""
        return self.shard.name

    @property
    def sidecar(self) -> str:
        """The name of its sidecar."""
        return sidecar_name(self.shard.file_name)

    @property
    def entry(self) -> ShardEntry | None:
        """What the dataset file says."""
        return self.shard.entry

    @property
    def survey(self) -> Survey | None:
        """The content of the shard; None where it could not be opened, or was not read."""
        return None if self.examined is None else self.examined.survey

    @property
    def crcs(self) -> list[int]:
        """The checksums of the shard that the dataset file and the sidecar say, as far as they do."""
        return [one.crc for one in (self.entry, self.fact) if one is not None and one.crc is not None]

    @property
    def sound(self) -> bool:
        """Whether the shard's bytes are proven to be those that were written."""
        survey = self.survey
        return survey is not None and survey.error is None and survey.crc in self.crcs


@dataclass(slots=True)
class Subject:
    """A dataset that is verified, and what was found so far.

    Attributes:
        dataset: The dataset, with what its dataset file says; None there where it has none, or it is damaged.
        cases: Its shards.
        findings: What is wrong.
        fields: How many samples have each field, of the shards that were read.
        repaired: What was mended, in words.
        left: What could not be mended, or compared, and why; it is told last.
        seconds: How long all of that took.
    """

    dataset: StoredDataset
    cases: tuple[ShardCase, ...]
    findings: Findings
    fields: Counter[str] = field(default_factory=Counter)
    repaired: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def file(self) -> DatasetFile | None:
        """What the dataset file says."""
        return self.dataset.file

    @property
    def folder(self) -> str:
        """Where the dataset file lies, or else the shards."""
        return self.dataset.folder

    @property
    def name(self) -> str:
        """The name of the dataset file, or else of the folder."""
        return base_name(self.dataset.where)

    @property
    def is_all(self) -> bool:
        """Whether all shards that the dataset file lists were given, in any order."""
        return self.file is not None and {one.name for one in self.file.shards} <= {case.name for case in self.cases}

    @property
    def read(self) -> list[tuple[int, ShardExamination]]:
        """The shards that were read: the number of each, and what was found."""
        return [(number, case.examined) for number, case in enumerate(self.cases) if case.examined is not None]

    @property
    def is_partial(self) -> bool:
        """Whether some of the shards that are there were not to be read, and others were."""
        return 0 < len(self.read) < sum(case.size is not None for case in self.cases)

    def hashes(self) -> NDArray[np.void]:
        """Return the hashes of the keys of all samples that were read, an array of two numbers each."""
        import numpy as np

        return np.frombuffer(b"".join(one.hashes for _, one in self.read), np.dtype([("a", "<u8"), ("b", "<u8")]))

    def ends(self) -> list[int]:
        """Return after how many samples each shard that was read ends."""
        return [*accumulate(len(one.hashes) // HASH_SIZE for _, one in self.read)]


def read_stored(given: Given) -> tuple[StoredDataset, Findings]:
    """Return a dataset, and what is wrong with its dataset file.

    Raises:
        InvalidRequest: There is no such dataset.
        CorruptShard: The dataset file names what lies elsewhere, or is none.
    """
    found, findings = find.find_dataset(given, lacking=True), Findings()
    path = found.dataset_file
    try:
        if path is not None and shard_names(data := read_small(path)) is None:
            findings.unchecked.append(f"checksums: {base_name(path)} is an index of wids, which has none")
        elif path is not None:
            return found.with_file(read_dataset(data, path)), findings
    except OSError as error:
        findings.add(-1, Finding("dataset-file-damaged", base_name(path or ""), reason(error)))
    except CorruptShard as error:
        findings.add(-1, finding_of("dataset-file-damaged", base_name(path or ""), error))
    return found.with_dots(find.recorded_dots(found)), findings


def open_subject(given: Given) -> Subject:
    """Return a dataset that is to be verified; it raises what `read_stored` does."""
    dataset, findings = read_stored(given)
    cases = (
        ShardCase(shard, dataset.own and (dataset.file is None or shard.entry is not None), size)
        for shard, size in zip(dataset.shards, plain_sizes(dataset.paths), strict=True)
    )
    return Subject(dataset, tuple(cases), findings)


def base_name(path: str) -> str:
    """Return the last part of a path, as it is printed."""
    return output_text(places.base_name(path) or path)


# One shard and its sidecar: a small check each, over what a worker found. A check yields findings and knows nothing of
# the others.


def check_shard(case: ShardCase) -> Iterator[Finding]:
    """Yield what is wrong with the shard as a file: missing, unreadable, of another size or other bytes."""
    if case.size is None:
        found, fetch = absence(case.shard.path)
        code = "shard-unreadable" if found == "no plain file" else "shard-missing"
        yield Finding(code, case.name, found, "what it leads to, fetched" if fetch else "")
        return
    if case.entry is not None and case.size != case.entry.size:
        yield Finding("shard-size", case.name, f"{case.size:,} bytes", f"{case.entry.size:,}{_LISTED}")
    if case.examined is None:
        if case.entry is None and case.name.endswith(".tar") and case.size % BLOCK:  # an upload that was cut short
            yield Finding("shard-size", case.name, f"{case.size:,} bytes", f"a multiple of {BLOCK}, as every tar has")
        return
    if case.examined.error is not None:
        yield finding_of("shard-unreadable", case.name, case.examined.error)
        return
    crc, fact = case.survey.crc if case.survey else None, case.fact
    of_file = case.entry.crc if case.entry is not None else None
    of_sidecar = fact.crc if fact is not None and fact.name == case.name else None
    for who, known in (("the dataset file", of_file), ("its sidecar", of_sidecar)):
        if crc is not None and known not in (None, crc):
            yield Finding("shard-checksum", case.name, f"the checksum {crc:08x}", f"{known:08x}, as {who} says")
            return


def check_records(case: ShardCase) -> Iterator[Finding]:
    """Yield what a walk over the shard found."""
    survey = case.survey
    if survey is None or case.examined is None:
        return
    if survey.error is not None:
        yield finding_of("shard-damaged", case.name, survey.error)
    for at in survey.soiled:
        yield Finding("padding-not-zero", case.name, "bytes after a payload", "zeros to the end of its block", at)
    for at, what in survey.differ:
        yield Finding("readers-differ", case.name, what, offset=at)
    yield from _unsafe_keys(case.name, survey)
    yield from _unsafe_members(case.name, survey)
    yield from _twice(case.name, survey, case.examined.more)
    yield from case.examined.findings


def _unsafe_keys(name: str, survey: Survey) -> Iterator[Finding]:
    for at, key in enumerate(survey.keys):
        if what := _harm_of_name(key):
            yield Finding("key-unsafe", name, what, offset=survey.starts[at], key=printable(key))
    for code, one in enumerate(survey.names):
        if one in RESERVED:
            samples = counted(survey.codes.count(code), "sample")
            what = f"a field that readers may take for the sample's own, in {samples}"
            yield Finding("key-unsafe", name, what, "another name", field=printable(one))
        # A slash is usual in the features of TFRecords, such as image/encoded; a tar's fields have none.
        if one[:1] == b"/" or _UNSAFE_PART.search(one) or _CONTROL.search(one):
            what = "a field with an absolute path, a part that is `..`, or a control character"
            what += f", in {counted(survey.codes.count(code), 'sample')}"
            yield Finding("key-unsafe", name, what, field=printable(one))


def _harm_of_name(name: bytes) -> str:
    """Return what is unsafe about a name; most pass the first test of each line, which costs the least."""
    if b".." in name and _UNSAFE_PART.search(name):
        return "a part that is `..`"
    if name[:1] == b"/":
        return "an absolute path"
    if not name.isascii() and not is_utf8(name):
        return "no UTF-8"
    return "a control character" if _CONTROL.search(name) else ""


def _unsafe_members(shard: str, survey: Survey) -> Iterator[Finding]:
    """Yield members besides samples that could do harm where the shard is extracted, and samples behind links."""
    links = {one.name.rstrip(b"/") for one in survey.odd if one.kind == _SYMBOLIC}
    odd = ((one.offset, one.name, _harm_of_name(one.name) or _harm_of_kind(one)) for one in survey.odd)
    for offset, name, harm in chain(odd, zip(survey.starts, survey.keys, repeat("")) if links else ()):
        link = b"" if harm else _below(name, links)
        if what := harm or (link and f"a name that leads through the link {printable(link)}"):
            yield Finding("member-unsafe", shard, f"{printable(name)}: {what}", offset=offset)


def _harm_of_kind(one: OddMember) -> str:
    """Return what is unsafe about a link or a device."""
    if one.kind in _DEVICES:
        return "a device or FIFO"
    if one.kind not in (_HARD, _SYMBOLIC):
        return ""
    folder = os.path.dirname(one.name) if one.kind == _SYMBOLIC else b""  # a hard link counts from the top
    target = os.path.normpath(os.path.join(folder, one.link))
    inner = re.search(rb"[^/.][^/]*/+(?:\.\.)(?:/|$)", one.link)  # through a link, that may be anywhere
    if _harm_of_name(target) or one.link[:1] == b"/" or inner:
        return f"a link that leads to {printable(one.link)}"
    return "a link with a control character" if _CONTROL.search(one.link) else ""


def _below(name: bytes, links: set[bytes]) -> bytes:
    """Return the link that a name leads through; empty where there is none."""
    at = name.find(b"/") if links else -1
    while at >= 0:
        if name[:at] in links:
            return name[:at]
        at = name.find(b"/", at + 1)
    return b""


def _twice(name: str, survey: Survey, more: dict[str, int]) -> Iterator[Finding]:
    """Yield fields that a sample has twice, the first of them; `more` gets how many more there are."""
    import numpy as np

    counts, codes = np.frombuffer(survey.counts, np.uint32), np.frombuffer(survey.codes, np.uint32)
    pairs = np.repeat(np.arange(len(counts)), counts)[: len(codes)] * max(1, len(survey.names)) + codes
    _, first, times = np.unique(pairs, return_index=True, return_counts=True)
    rows = first[times > 1]
    if len(rows) > MOST:
        more["field-duplicate"] = len(rows) - MOST
    for row in rows[:MOST].tolist():
        sample = int(np.searchsorted(np.cumsum(counts), row, "right"))
        field = walked_text(survey.names[survey.codes[row]])
        key = walked_text(survey.keys[sample])
        yield Finding("field-duplicate", name, "a field twice", offset=survey.offsets[row], key=key, field=field)


def check_sidecar(case: ShardCase) -> Iterator[Finding]:
    """Read the sidecar's bytes and what it says of its shard; yield what is wrong with it as a file."""
    from shardtool.dataset.shard_index import read_bytes, read_facts

    entry = case.entry
    try:
        case.data = read_bytes(case.shard.sidecar)
    except FileNotFoundError:
        if case.wanted:
            yield Finding("sidecar-missing", case.sidecar, "no such file")
        return
    except OSError as error:
        yield Finding("sidecar-damaged", case.sidecar, reason(error))
        return
    if not case.wanted and _PARQUET not in (case.data[:4], case.data[-4:]):
        case.data = None  # some other tool's file of that name
        return
    if entry is not None and len(case.data) != entry.sidecar_size:
        yield Finding("sidecar-size", case.sidecar, f"{len(case.data):,} bytes", f"{entry.sidecar_size:,}{_LISTED}")
    elif entry is not None and (crc := crc32c(case.data)) != entry.sidecar_crc:
        found = f"the checksum {crc:08x}"
        yield Finding("sidecar-checksum", case.sidecar, found, f"{entry.sidecar_crc:08x}{_LISTED}")
    try:
        case.fact = read_facts(case.data, case.sidecar)
    except CorruptShard as error:
        yield finding_of("sidecar-damaged", case.sidecar, error)


def check_fact(case: ShardCase) -> Iterator[Finding]:
    """Yield whether the sidecar is about another shard than the one it lies beside."""
    fact, entry = case.fact, case.entry
    if fact is None:
        return
    said = f"an index of {printable(fact.name)}, {fact.size:,} bytes"
    if fact.name != case.name or (case.size is not None and fact.size != case.size):
        size = "" if case.size is None else f", {case.size:,} bytes"
        yield Finding("sidecar-stale", case.sidecar, said, f"one of {case.name}{size}")
    elif entry is not None and None not in (fact.crc, entry.crc) and fact.crc != entry.crc:
        yield Finding("sidecar-stale", case.sidecar, f"{said}, checksum {fact.crc:08x}", f"{entry.crc:08x}")


def check_index(case: ShardCase) -> Iterator[Finding]:
    """Yield, of a shard that was read, what keeps the sidecar's columns from being read, or where the two differ."""
    from shardtool.dataset.shard_index import differences, read_sidecar, walked_index

    survey = case.survey
    if case.data is None or case.fact is None or case.examined is None:
        return
    try:
        index = read_sidecar(case.data, case.sidecar, case.size)
    except CorruptShard as error:
        yield finding_of("sidecar-damaged", case.sidecar, error)
        return
    if survey is None or survey.size < 0:
        return
    for one in differences(index, walked_index(survey)):
        if one.what == "samples":
            samples, expected = counted(len(index), "sample"), f"{one.second}, as the shard holds"
            yield Finding("index-differs", case.sidecar, samples, expected)
            continue
        key = walked_text(survey.keys[one.sample])
        field = walked_text(survey.names[survey.codes[one.row]]) if one.row >= 0 else ""
        if one.what == "checksum":
            what, expected = f"the checksum {one.second}", f"{one.first}, as its sidecar says"
            yield Finding("payload-checksum", case.name, what, expected, survey.offsets[one.row], key, field)
            continue
        what, expected = f"in row {one.sample:,}: the {one.what} {one.first}", f"{one.second}, as the shard holds"
        yield Finding("index-differs", case.sidecar, what, expected, survey.starts[one.sample], key, field)


def check_entry(case: ShardCase) -> Iterator[Finding]:
    """Yield where the dataset file lists other samples than the shard holds."""
    entry, survey = case.entry, case.survey
    if entry is None or survey is None or survey.error is not None:
        return
    if entry.samples != len(survey.keys):
        yield Finding("totals-differ", case.name, counted(len(survey.keys), "sample"), f"{entry.samples:,}{_LISTED}")
        return
    ends = [walked_text(survey.keys[at]) for at in (0, -1)] if survey.keys else ["", ""]
    for what, recorded, key in zip(("first", "last"), (entry.first_key, entry.last_key), ends, strict=True):
        if recorded != key:
            found = f"the {what} key {printable(key)}"
            yield Finding("totals-differ", case.name, found, f"{printable(recorded)}{_LISTED}")


SHARD_CHECKS = (check_sidecar, check_shard, check_fact, check_records, check_index, check_entry)


# What no shard alone can show: keys that two samples have, the totals, and the fingerprint of the content.


def check_together(subject: Subject, surveys: Mapping[int, Survey]) -> None:
    """Find what is wrong with all shards together; `surveys`: those of shards that are kept."""
    _check_keys(subject, surveys)
    file, unchecked = subject.file, subject.findings.unchecked
    if file is None:
        return
    if subject.is_partial:
        unchecked.append("totals and the fingerprint: not all shards were read")
    elif any(case.survey is None or case.survey.error is not None for case in subject.cases):
        unchecked.append("totals and the fingerprint: some shards cannot be read to their end")
    elif subject.is_all and len(subject.cases) == len(file.shards):
        fields = subject.fields
        digests = [one.survey.digest if one.survey else None for _, one in subject.read]
        for one in sorted({*file.fields, *fields}, key=str):
            if file.fields.get(one) != fields.get(one):
                what = f"the field {printable(one)} {file.fields.get(one, 0):,} times"
                expected = f"{fields.get(one, 0):,}, as the shards hold"
                subject.findings.add(-1, Finding("totals-differ", subject.name, what, expected))
        if not file.fingerprint:
            unchecked.append(f"the fingerprint: there is none; {call('index', checksum=True)} adds it")
        elif None in digests:
            unchecked.append("the fingerprint: the text of floats is not in TFRecord shards")
        elif (total := show_fingerprint(sum(digest or 0 for digest in digests))) != file.fingerprint:
            found, expected = printable(file.fingerprint), f"{total}, of what the shards hold"
            subject.findings.add(-1, Finding("fingerprint-differs", subject.name, found, expected))


def _check_keys(subject: Subject, surveys: Mapping[int, Survey]) -> None:
    """Find keys that two samples have: by their hashes, 16 bytes per sample."""
    import numpy as np

    pairs = subject.hashes()
    firsts = np.sort(pairs["a"])
    if not np.any(firsts[1:] == firsts[:-1]):
        return
    order = np.lexsort((pairs["b"], pairs["a"]))
    ordered = pairs[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    subject.findings.counts["key-duplicate"] += max(0, len(same) - MOST)
    read = dict(surveys)
    for at in same[:MOST].tolist():
        places = sorted((int(order[at]), int(order[at + 1])))
        (first, key), (second, _) = (sample_at(subject, read, place) for place in places)
        found = f"also in {'the same shard' if first == second else subject.cases[first].name}"
        subject.findings.add(second, Finding("key-duplicate", subject.cases[second].name, found, key=key))


def sample_at(subject: Subject, read: dict[int, Survey], place: int) -> tuple[int, str]:
    """Return the shard and the key of the sample at a place in all; shards that are not in `read` are read for it."""
    ends = subject.ends()
    at = bisect_right(ends, place)
    number, _ = subject.read[at]
    if number not in read:
        read[number] = subject.cases[number].shard.survey()
    keys = read[number].keys
    row = place - (ends[at - 1] if at else 0)
    return number, walked_text(keys[row]) if row < len(keys) else ""


# What the names in a folder show: gaps between shards, files that no dataset file lists, shards that are missing.


_MOST_GAPS = 1000
_NUMBERED = re.compile(r"(.*?)(\d{1,18})(\D*)", re.ASCII)


def check_numbering(subject: Subject) -> None:
    """Find gaps, shards that are not listed, and sidecars without a shard."""
    findings, file = subject.findings, subject.file
    if file is None and subject.dataset.own:
        findings.unchecked.append("shards that are not listed: the dataset file is damaged")
    findings.add(-1, *_gaps(subject))
    try:
        names = _names_in(subject, needed=True)
    except AccessRefused:
        names = set()
        findings.unchecked.append("files that the dataset file does not list: the store does not let us list")
    if file is None:
        for name, shards in _datasets_beside(subject, names).items() if subject.dataset.dataset_file is None else ():
            findings.unchecked.append(f"what {output_text(name)} says: it lists {counted(len(shards), 'shard')}")
        return
    listed = {one.name for one in file.shards}
    extra = [*_extra(file, names, listed)] if subject.is_all else []
    findings.add(-1, *extra)
    said, given = listed.union(one.file for one in extra), {case.name for case in subject.cases}
    for number, case in enumerate(subject.cases):
        if case.name not in said:
            findings.add(number, Finding("shard-extra", case.name, "not in the dataset file"))
    if subject.is_all:
        findings.add(-1, *_skipped(subject.folder, file))
        return
    unseen = not names or is_web(subject.folder)
    left = [] if unseen else sorted(listed.difference(map(output_text, names), given))
    gone = f"; of the others {listing(left)} {'is' if len(left) == 1 else 'are'} not there" if left else ""
    of = f"{len(subject.cases):,} of its {counted(len(file.shards), 'shard')} were given{gone}"
    findings.unchecked.append(f"totals and the fingerprint of {subject.name}: {of}")


def check_finished(subject: Subject) -> None:
    """Find whether shards without a whole dataset file are all that their run planned; their sidecars were read."""
    missing = _dataset_file_missing(subject)
    if missing is None and not (subject.file is None and subject.dataset.own):
        return
    there = [case for case in subject.cases if case.size is not None]
    facts = [case.fact if case.fact and case.fact.name == case.name else None for case in there]
    short = [*find.unfinished(facts, find.facts_beside(subject.dataset))]
    folder = base_name(subject.folder or ".")
    subject.findings.add(-1, *(Finding("dataset-incomplete", folder, one, find.ALL_SHARDS) for one in short))
    if missing is not None and not short:
        subject.findings.add(-1, missing)


def _names_in(subject: Subject, *, needed: bool = False) -> set[str]:
    """Return the names of all that lies in the folders of a dataset; on the web, of what was read there."""
    if is_web(subject.folder):
        return {case.sidecar for case in subject.cases if case.fact is not None}
    folders = {subject.folder, *subject.dataset.folders()}
    return {name for folder in folders for name in names_in(folder, needed=needed)}


def _datasets_beside(subject: Subject, names: set[str]) -> dict[str, set[str]]:
    """Return the shards that each dataset file in the folder lists, of those that list some that were given.

    None where no shard has a sidecar: then a dataset file tells of others that have the same names.
    """
    left, found = {case.name for case in subject.cases}, dict[str, set[str]]()
    if names.isdisjoint(case.sidecar for case in subject.cases):
        return found
    for name in sorted(name for name in names if name.endswith(DATASET_SUFFIX)):
        if left & (listed := find.listed_by(join(subject.folder, name))):
            left -= listed
            found[name] = listed
    return found


def _dataset_file_missing(subject: Subject) -> Finding | None:
    """Return the finding that sidecars lie beside some of the shards, and no dataset file lists these."""
    if subject.dataset.dataset_file is not None or _is_one_file(subject.dataset.given):
        return None
    names = _names_in(subject)
    if not (sidecars := names & {case.sidecar for case in subject.cases}):
        return None
    if {case.name for case in subject.cases} <= set[str]().union(*_datasets_beside(subject, names).values()):
        return None
    damaged = find.damaged_file(subject.dataset)
    state = f"a damaged {base_name(damaged)}" if damaged else "no dataset file"
    what = f"{counted(len(sidecars), 'sidecar')} and {state}: what is here may not be all"
    return Finding("dataset-file-missing", base_name(subject.folder or "."), what)


def _is_one_file(given: Given) -> bool:
    """Tell whether one shard, or another file, was named, rather than several: who names one asks about that alone."""
    if not isinstance(given, (str, os.PathLike)):
        return False
    path = os.fspath(given)
    return is_shard_name(places.base_name(path)) and "{" not in path if is_url(path) else os.path.isfile(path)


def _extra(file: DatasetFile, names: set[str], listed: set[str]) -> Iterator[Finding]:
    """Yield files that belong to the dataset by their name, and are not listed."""
    if (pattern := find.recorded_pattern(file)) is None:
        return
    known = listed.union(one.sidecar for one in file.shards)
    for name in sorted((name for name in names if output_text(name) not in known), key=find.natural):
        kind = "sidecar" if name.endswith(SIDECAR_SUFFIX) else "shard"
        if pattern.owns(name) and (kind == "sidecar" or is_shard_name(name)):
            yield Finding(f"{kind}-extra", output_text(name), "not in the dataset file")


def _gaps(subject: Subject) -> Iterator[Finding]:
    """Yield the shards of a range that are neither there nor listed; else the numbers that are missing."""
    names = [shard.file_name for shard in subject.dataset.shards]
    for name in subject.dataset.missing:
        yield Finding("shard-missing", output_text(name), "not there, and of the pattern")
    if subject.file is not None:
        names = [one.name for one in subject.file.shards] if subject.is_all else []
    elif subject.dataset.missing or not isinstance(subject.dataset.given, (str, os.PathLike)):
        return
    yield from islice(_lacking(names), _MOST_GAPS)


def _lacking(names: list[str]) -> Iterator[Finding]:
    """Yield the numbers that are missing between names; of TensorFlow's, each of which tells how many there are, all.

    Those that are there are held, so that a gap takes no time but for the names that are taken of it.
    """
    series: dict[tuple[str, str, int, int], set[int]] = {}
    for name in names:
        stem = sidecar_name(name).removesuffix(SIDECAR_SUFFIX)
        if whole := whole_of(name):
            prefix, number, width, many = whole
            series.setdefault((prefix, f"-of-{many:0{width}d}", width, many), set()).add(number)
        elif match := _NUMBERED.fullmatch(stem):
            width = len(match[2]) if match[2][0] == "0" else 0
            series.setdefault((match[1], match[3] + name[len(stem) :], width, 0), set()).add(int(match[2]))
    for (prefix, suffix, width, many), numbers in series.items():
        expected = f"{counted(many, 'shard')}, as their names say" if many else "a shard of this number"
        for number in range(many) if many else range(min(numbers), max(numbers)):
            if number not in numbers:
                missing = output_text(f"{prefix}{number:0{width}d}{suffix}")
                yield Finding("numbering-gap", missing, "not there", expected)


def _skipped(folder: str, file: DatasetFile) -> Iterator[Finding]:
    """Yield how the list of what was left out differs from what the dataset file says of it."""
    name = f"{file.name}.skipped"
    try:
        data = read_small(join(folder, os.fsdecode(to_bytes(name))))
    except (FileNotFoundError, AccessRefused) as error:  # the latter is said of what is not there, too
        if file.skipped and not isinstance(error, FileNotFoundError):
            raise
        data = b""
    except (OSError, ValueError) as error:
        yield Finding("skipped-differs", name, str(error))
        return
    rows = data.count(b"\n")
    if rows == file.skipped and file.skipped_crc is not None and crc32c(data) != file.skipped_crc:
        yield Finding("skipped-differs", name, f"the checksum {crc32c(data):08x}", f"{file.skipped_crc:08x}")
    if rows != file.skipped:
        yield Finding("skipped-differs", name, counted(rows, "row"), f"{file.skipped:,}{_LISTED}")
