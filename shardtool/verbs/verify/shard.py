"""What can be wrong with one shard and its sidecar: one small check each, over what a worker found.

A check yields findings and knows nothing of the others. They run in the parent, which has NumPy and pyarrow.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shardtool.dataset.sidecar_read import read_bytes, read_facts
from shardtool.dataset.walk import walked_text
from shardtool.errors import CorruptShard, printable, reason
from shardtool.fingerprint import crc32c
from shardtool.storage.places import dangling, is_url
from shardtool.values import RESERVED, counted
from shardtool.verbs.verify.findings import Finding, finding_of

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.dataset.walk import OddMember, Survey
    from shardtool.verbs.verify.subject import ShardCase

Number = TypeVar("Number", bound=np.generic)

_UNSAFE_PART = re.compile(rb"(?:^|/)\.\.(?:/|$)")
_PARQUET = b"PAR1"
_MOST = 100  # findings of one kind: the rest says nothing new, and is counted
_HARD, _SYMBOLIC = b"1", b"2"  # types of members
_DEVICES = (b"3", b"4", b"6")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


def check_shard(case: ShardCase) -> Iterator[Finding]:
    """Yield what is wrong with the shard as a file: missing, unreadable, of another size or other bytes."""
    if case.size is None:
        if is_url(case.path):
            yield Finding("shard-missing", case.name, "no such object")
        elif (target := dangling(case.path)) is not None:
            yield Finding("shard-missing", case.name, f"a link to nothing, {target}", "what it leads to, fetched")
        elif os.path.lexists(case.path):
            yield Finding("shard-unreadable", case.name, "no plain file")
        else:
            yield Finding("shard-missing", case.name, "no such file")
        return
    if case.entry is not None and case.size != case.entry.size:
        expected = f"{case.entry.size:,}, as the dataset file says"
        yield Finding("shard-size", case.name, f"{case.size:,} bytes", expected)
    if case.examined is None:
        return
    if case.examined.error is not None:
        yield finding_of("shard-unreadable", case.name, case.examined.error)
        return
    crc = case.survey.crc if case.survey else None
    if crc is not None and case.entry is not None and case.entry.crc not in (None, crc):
        yield Finding(
            "shard-checksum", case.name, f"the checksum {crc:08x}", f"{case.entry.crc:08x}, as the dataset file says"
        )
    elif crc is not None and case.fact is not None and case.fact.name == case.name and case.fact.crc not in (None, crc):
        yield Finding(
            "shard-checksum", case.name, f"the checksum {crc:08x}", f"{case.fact.crc:08x}, as its sidecar says"
        )


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
    for code, field in enumerate(survey.names):
        if field in RESERVED:
            samples = counted(survey.codes.count(code), "sample")
            what = f"a field that readers may take for the sample's own, in {samples}"
            yield Finding("key-unsafe", name, what, "another name", field=printable(field))
        # A slash is usual in the features of TFRecords, such as image/encoded; a tar's fields have none.
        if field[:1] == b"/" or _UNSAFE_PART.search(field) or _CONTROL.search(field):
            what = "a field with an absolute path, a part that is `..`, or a control character"
            what += f", in {counted(survey.codes.count(code), 'sample')}"
            yield Finding("key-unsafe", name, what, field=printable(field))


def _harm_of_name(name: bytes) -> str:
    """Return what is unsafe about a name; most pass the first test of each line, which costs the least."""
    if b".." in name and _UNSAFE_PART.search(name):
        return "a part that is `..`"
    if name[:1] == b"/":
        return "an absolute path"
    if not name.isascii() and not _is_text(name):
        return "no UTF-8"
    return "a control character" if _CONTROL.search(name) else ""


def _unsafe_members(name: str, survey: Survey) -> Iterator[Finding]:
    """Yield members besides samples that could do harm where the shard is extracted."""
    links = {one.name.rstrip(b"/") for one in survey.odd if one.kind == _SYMBOLIC}
    for one in survey.odd:
        if what := _harm_of_name(one.name) or _harm_of_kind(one):
            yield Finding("member-unsafe", name, f"{printable(one.name)}: {what}", offset=one.offset)
        elif links and (link := _below(one.name, links)):
            yield _below_link(name, one.offset, one.name, link)
    for at, key in enumerate(survey.keys if links else ()):
        if link := _below(key, links):
            yield _below_link(name, survey.starts[at], key, link)


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
    at = name.find(b"/")
    while at >= 0:
        if name[:at] in links:
            return name[:at]
        at = name.find(b"/", at + 1)
    return b""


def _below_link(shard: str, offset: int, name: bytes, link: bytes) -> Finding:
    found = f"{printable(name)}: a name that leads through the link {printable(link)}"
    return Finding("member-unsafe", shard, found, offset=offset)


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _twice(name: str, survey: Survey, more: dict[str, int]) -> Iterator[Finding]:
    """Yield fields that a sample has twice, the first of them; `more` gets how many more there are."""
    counts = column(survey.counts, np.uint32)
    codes = column(survey.codes, np.uint32)
    pairs = np.repeat(np.arange(len(counts)), counts)[: len(codes)] * max(1, len(survey.names)) + codes
    _, first, times = np.unique(pairs, return_index=True, return_counts=True)
    rows = first[times > 1]
    if len(rows) > _MOST:
        more["field-duplicate"] = len(rows) - _MOST
    for row in rows[:_MOST].tolist():
        sample = int(np.searchsorted(np.cumsum(counts), row, "right"))
        field = walked_text(survey.names[survey.codes[row]])
        key = walked_text(survey.keys[sample])
        yield Finding("field-duplicate", name, "a field twice", offset=survey.offsets[row], key=key, field=field)


def read_sidecar(case: ShardCase) -> Iterator[Finding]:
    """Read the sidecar's bytes and what it says of its shard; yield what is wrong with it as a file."""
    entry = case.entry
    try:
        case.data = read_bytes(case.sidecar_path)
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
        expected = f"{entry.sidecar_size:,}, as the dataset file says"
        yield Finding("sidecar-size", case.sidecar, f"{len(case.data):,} bytes", expected)
    elif entry is not None and (crc := crc32c(case.data)) != entry.sidecar_crc:
        expected = f"{entry.sidecar_crc:08x}, as the dataset file says"
        yield Finding("sidecar-checksum", case.sidecar, f"the checksum {crc:08x}", expected)
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


def read_case_index(case: ShardCase) -> Iterator[Finding]:
    """Read the sidecar's columns; yield what keeps them from being read."""
    from shardtool.dataset.sidecar_read import read_sidecar as read

    if case.data is None or case.fact is None:
        return
    try:
        case.index = read(case.data, case.sidecar, case.size)
    except CorruptShard as error:
        yield finding_of("sidecar-damaged", case.sidecar, error)


def check_index(case: ShardCase) -> Iterator[Finding]:
    """Yield where the sidecar and the shard differ."""
    from shardtool.dataset.shard_index import differences, walked_index

    index, survey = case.index, case.survey
    if index is None or survey is None or survey.size < 0:
        return
    for one in differences(index, walked_index(survey)):
        if one.what == "samples":
            yield Finding(
                "index-differs", case.sidecar, counted(len(index), "sample"), f"{one.second}, as the shard holds"
            )
            continue
        key = walked_text(survey.keys[one.sample])
        field = walked_text(survey.names[survey.codes[one.row]]) if one.row >= 0 else ""
        if one.what == "checksum":
            what, expected = f"the checksum {one.second}", f"{one.first}, as its sidecar says"
            yield Finding("payload-checksum", case.name, what, expected, survey.offsets[one.row], key, field)
            continue
        what, expected = f"in row {one.sample:,}: the {one.what} {one.first}", f"{one.second}, as the shard holds"
        yield Finding("index-differs", case.sidecar, what, expected, survey.starts[one.sample], key, field)


def column(values: array[int], kind: type[Number]) -> NDArray[Number]:
    """Return a survey's column as an array."""
    return np.frombuffer(values, kind) if len(values) else np.zeros(0, kind)


def check_entry(case: ShardCase) -> Iterator[Finding]:
    """Yield where the dataset file lists other samples than the shard holds."""
    entry, survey = case.entry, case.survey
    if entry is None or survey is None or survey.error is not None:
        return
    if entry.samples != len(survey.keys):
        found = counted(len(survey.keys), "sample")
        yield Finding("totals-differ", case.name, found, f"{entry.samples:,}, as the dataset file says")
        return
    ends = [walked_text(survey.keys[at]) for at in (0, -1)] if survey.keys else ["", ""]
    for what, recorded, key in zip(("first", "last"), (entry.first_key, entry.last_key), ends, strict=True):
        if recorded != key:
            found = f"the {what} key {printable(key)}"
            yield Finding("totals-differ", case.name, found, f"{printable(recorded)}, as the dataset file says")
