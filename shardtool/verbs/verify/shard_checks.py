"""Checks of one shard and its sidecar, over what a worker found. A check yields findings and is independent of the
others.
"""

from __future__ import annotations

import os
import re
from itertools import chain, repeat
from typing import TYPE_CHECKING

from shardtool.dataset.scan import ShardScan, UnrecognisedMember, index_text
from shardtool.dataset.shard_file import describe_missing
from shardtool.errors import (
    CorruptShard,
    os_error_text,
    printable,
)
from shardtool.fingerprint import crc32c
from shardtool.format.tar_write import TAR_BLOCK_BYTES
from shardtool.names import RESERVED_NAMES, is_utf8
from shardtool.units import pluralize
from shardtool.verbs.verify.findings import MAX_LISTED_PER_FILE, Finding, finding_from_error
from shardtool.verbs.verify.verified_dataset import AS_LISTED, ShardCheck

if TYPE_CHECKING:
    from collections.abc import Iterator


_PARENT_PART = re.compile(rb"(?:^|/)\.\.(?:/|$)")


_PARQUET_MAGIC = b"PAR1"


_HARD_LINK, _SYMBOLIC_LINK = b"1", b"2"  # types of members


_DEVICE_TYPES = (b"3", b"4", b"6")


_CONTROL_CHARS = re.compile(rb"[\x00-\x1f\x7f]")


def check_shard(case: ShardCheck) -> Iterator[Finding]:
    """Yield what is wrong with the shard as a file: missing, unreadable, of another size or other bytes."""
    if case.size is None:
        found, fetch = describe_missing(case.shard.path)
        code = "shard-unreadable" if found == "not a regular file" else "shard-missing"
        yield Finding(code, case.name, found, "what it leads to, fetched" if fetch else "")
        return
    if case.entry is not None and case.size != case.entry.size:
        yield Finding("shard-size", case.name, f"{case.size:,} bytes", f"{case.entry.size:,}{AS_LISTED}")
    if case.examined is None:
        if (
            case.entry is None and case.name.endswith(".tar") and case.size % TAR_BLOCK_BYTES
        ):  # an upload that was cut short
            yield Finding(
                "shard-size", case.name, f"{case.size:,} bytes", f"a multiple of {TAR_BLOCK_BYTES}, as every tar has"
            )
        return
    if case.examined.error is not None:
        yield finding_from_error("shard-unreadable", case.name, case.examined.error)
        return
    crc, fact = case.scan.crc if case.scan else None, case.fact
    of_file = case.entry.crc if case.entry is not None else None
    of_sidecar = fact.crc if fact is not None and fact.name == case.name else None
    for who, known in (("the dataset file", of_file), ("its sidecar", of_sidecar)):
        if crc is not None and known not in (None, crc):
            yield Finding("shard-checksum", case.name, f"the checksum {crc:08x}", f"{known:08x}, as {who} says")
            return


def check_content(case: ShardCheck) -> Iterator[Finding]:
    """Yield what a walk over the shard found."""
    scan = case.scan
    if scan is None or case.examined is None:
        return
    if scan.error is not None:
        yield finding_from_error("shard-damaged", case.name, scan.error)
    for at in scan.nonzero_padding:
        yield Finding("padding-not-zero", case.name, "bytes after a payload", "zeros to the end of its block", at)
    for at, what in scan.differ:
        yield Finding("readers-differ", case.name, what, offset=at)
    yield from _find_unsafe_keys(case.name, scan)
    yield from _find_unsafe_members(case.name, scan)
    yield from _find_repeated_fields(case.name, scan, case.examined.more)
    yield from case.examined.findings


def _find_unsafe_keys(name: str, scan: ShardScan) -> Iterator[Finding]:
    for at, key in enumerate(scan.keys):
        if what := _unsafe_name_reason(key):
            yield Finding("key-unsafe", name, what, offset=scan.starts[at], key=printable(key))
    for code, one in enumerate(scan.names):
        if one in RESERVED_NAMES:
            samples = pluralize(scan.codes.count(code), "sample")
            what = f"a field that readers may take for the sample's own, in {samples}"
            yield Finding("key-unsafe", name, what, "another name", field=printable(one))
        # A slash is usual in the features of TFRecords, such as image/encoded; a tar's fields have none.
        if one[:1] == b"/" or _PARENT_PART.search(one) or _CONTROL_CHARS.search(one):
            what = "a field with an absolute path, a part that is `..`, or a control character"
            what += f", in {pluralize(scan.codes.count(code), 'sample')}"
            yield Finding("key-unsafe", name, what, field=printable(one))


def _unsafe_name_reason(name: bytes) -> str:
    """Return what is unsafe about a name; most pass the first test of each line, which costs the least."""
    if b".." in name and _PARENT_PART.search(name):
        return "a part that is `..`"
    if name[:1] == b"/":
        return "an absolute path"
    if not name.isascii() and not is_utf8(name):
        return "no UTF-8"
    return "a control character" if _CONTROL_CHARS.search(name) else ""


def _find_unsafe_members(shard: str, scan: ShardScan) -> Iterator[Finding]:
    """Yield members besides samples that could do harm where the shard is extracted, and samples behind links."""
    links = {one.name.rstrip(b"/") for one in scan.odd if one.kind == _SYMBOLIC_LINK}
    odd = ((one.offset, one.name, _unsafe_name_reason(one.name) or _unsafe_type_reason(one)) for one in scan.odd)
    for offset, name, harm in chain(odd, zip(scan.starts, scan.keys, repeat("")) if links else ()):
        link = b"" if harm else _link_above(name, links)
        if what := harm or (link and f"a name that leads through the link {printable(link)}"):
            yield Finding("member-unsafe", shard, f"{printable(name)}: {what}", offset=offset)


def _unsafe_type_reason(one: UnrecognisedMember) -> str:
    """Return what is unsafe about a link or a device."""
    if one.kind in _DEVICE_TYPES:
        return "a device or FIFO"
    if one.kind not in (_HARD_LINK, _SYMBOLIC_LINK):
        return ""
    folder = os.path.dirname(one.name) if one.kind == _SYMBOLIC_LINK else b""  # a hard link counts from the top
    target = os.path.normpath(os.path.join(folder, one.link))
    inner = re.search(rb"[^/.][^/]*/+(?:\.\.)(?:/|$)", one.link)  # through a link, that may be anywhere
    if _unsafe_name_reason(target) or one.link[:1] == b"/" or inner:
        return f"a link that leads to {printable(one.link)}"
    return "a link with a control character" if _CONTROL_CHARS.search(one.link) else ""


def _link_above(name: bytes, links: set[bytes]) -> bytes:
    """Return the link that a name leads through; empty where there is none."""
    at = name.find(b"/") if links else -1
    while at >= 0:
        if name[:at] in links:
            return name[:at]
        at = name.find(b"/", at + 1)
    return b""


def _find_repeated_fields(name: str, scan: ShardScan, more: dict[str, int]) -> Iterator[Finding]:
    """Yield fields that a sample has twice, the first of them; `more` gets how many more there are."""
    import numpy as np

    counts, codes = np.frombuffer(scan.counts, np.uint32), np.frombuffer(scan.codes, np.uint32)
    pairs = np.repeat(np.arange(len(counts)), counts)[: len(codes)] * max(1, len(scan.names)) + codes
    _, first, times = np.unique(pairs, return_index=True, return_counts=True)
    rows = first[times > 1]
    if len(rows) > MAX_LISTED_PER_FILE:
        more["field-duplicate"] = len(rows) - MAX_LISTED_PER_FILE
    for row in rows[:MAX_LISTED_PER_FILE].tolist():
        sample = int(np.searchsorted(np.cumsum(counts), row, "right"))
        field = index_text(scan.names[scan.codes[row]])
        key = index_text(scan.keys[sample])
        yield Finding("field-duplicate", name, "a field twice", offset=scan.offsets[row], key=key, field=field)


def check_sidecar(case: ShardCheck) -> Iterator[Finding]:
    """Read the sidecar's bytes and what it says of its shard; yield what is wrong with it as a file."""
    from shardtool.dataset.sidecar_read import load_sidecar, parse_facts

    entry = case.entry
    try:
        case.data = load_sidecar(case.shard.sidecar)
    except FileNotFoundError:
        if case.wanted:
            yield Finding("sidecar-missing", case.sidecar, "no such file")
        return
    except OSError as error:
        yield Finding("sidecar-damaged", case.sidecar, os_error_text(error))
        return
    if not case.wanted and _PARQUET_MAGIC not in (case.data[:4], case.data[-4:]):
        case.data = None  # some other tool's file of that name
        return
    if entry is not None and len(case.data) != entry.sidecar_size:
        yield Finding("sidecar-size", case.sidecar, f"{len(case.data):,} bytes", f"{entry.sidecar_size:,}{AS_LISTED}")
    elif entry is not None and (crc := crc32c(case.data)) != entry.sidecar_crc:
        found = f"the checksum {crc:08x}"
        yield Finding("sidecar-checksum", case.sidecar, found, f"{entry.sidecar_crc:08x}{AS_LISTED}")
    try:
        case.fact = parse_facts(case.data, case.sidecar)
    except CorruptShard as error:
        yield finding_from_error("sidecar-damaged", case.sidecar, error)


def check_sidecar_matches_shard(case: ShardCheck) -> Iterator[Finding]:
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


def check_index(case: ShardCheck) -> Iterator[Finding]:
    """Yield, of a shard that was read, what keeps the sidecar's columns from being read, or where the two differ."""
    from shardtool.dataset.index_differences import compare_indexes
    from shardtool.dataset.shard_index import scanned_index
    from shardtool.dataset.sidecar_read import parse_sidecar

    scan = case.scan
    if case.data is None or case.fact is None or case.examined is None:
        return
    try:
        index = parse_sidecar(case.data, case.sidecar, case.size)
    except CorruptShard as error:
        yield finding_from_error("sidecar-damaged", case.sidecar, error)
        return
    if scan is None or scan.size < 0:
        return
    for one in compare_indexes(index, scanned_index(scan)):
        if one.what == "samples":
            samples, expected = pluralize(len(index), "sample"), f"{one.second}, as the shard holds"
            yield Finding("index-differs", case.sidecar, samples, expected)
            continue
        key = index_text(scan.keys[one.sample])
        field = index_text(scan.names[scan.codes[one.row]]) if one.row >= 0 else ""
        if one.what == "checksum":
            what, expected = f"the checksum {one.second}", f"{one.first}, as its sidecar says"
            yield Finding("payload-checksum", case.name, what, expected, scan.offsets[one.row], key, field)
            continue
        what, expected = f"in row {one.sample:,}: the {one.what} {one.first}", f"{one.second}, as the shard holds"
        yield Finding("index-differs", case.sidecar, what, expected, scan.starts[one.sample], key, field)


def check_entry(case: ShardCheck) -> Iterator[Finding]:
    """Yield where the dataset file lists other samples than the shard holds."""
    entry, scan = case.entry, case.scan
    if entry is None or scan is None or scan.error is not None:
        return
    if entry.samples != len(scan.keys):
        yield Finding("totals-differ", case.name, pluralize(len(scan.keys), "sample"), f"{entry.samples:,}{AS_LISTED}")
        return
    ends = [index_text(scan.keys[at]) for at in (0, -1)] if scan.keys else ["", ""]
    for what, recorded, key in zip(("first", "last"), (entry.first_key, entry.last_key), ends, strict=True):
        if recorded != key:
            found = f"the {what} key {printable(key)}"
            yield Finding("totals-differ", case.name, found, f"{printable(recorded)}{AS_LISTED}")


SHARD_CHECKS = (check_sidecar, check_shard, check_sidecar_matches_shard, check_content, check_index, check_entry)
