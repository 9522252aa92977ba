"""Check a scanned shard and its sidecar."""

from __future__ import annotations

import os
import re
from itertools import chain, repeat
from typing import TYPE_CHECKING

from shardtool.dataset.scan import ShardScan, UnrecognisedMember, decode_name
from shardtool.dataset.shard_file import describe_missing
from shardtool.errors import CorruptShard, os_error_text, printable
from shardtool.fingerprint import crc32c
from shardtool.format.tar_write import TAR_BLOCK_BYTES
from shardtool.names import RESERVED_NAMES, has_parent_part, is_utf8
from shardtool.units import pluralize
from shardtool.verbs.verify.findings import Finding, Findings, finding_from_error
from shardtool.verbs.verify.verified_dataset import AS_LISTED, ShardCheck

if TYPE_CHECKING:
    from collections.abc import Iterator


_PARQUET_MAGIC = b"PAR1"
_HARD_LINK, _SYMBOLIC_LINK = b"1", b"2"
_DEVICE_TYPES = (b"3", b"4", b"6")
_CONTROL_CHARS = re.compile(rb"[\x00-\x1f\x7f]")


def check_shard(case: ShardCheck) -> Iterator[Finding]:
    """Check that the shard exists, can be read, and has the recorded size and checksum."""
    if case.size is None:
        problem, fetch = describe_missing(case.shard.path)
        code = "shard-unreadable" if problem == "not a regular file" else "shard-missing"
        yield Finding(code, case.name, problem, "its target, fetched" if fetch else "")
        return
    if case.entry is not None and case.size != case.entry.size:
        yield Finding("shard-size", case.name, f"{case.size:,} bytes", f"{case.entry.size:,}{AS_LISTED}")
    if case.examined is None:
        if case.entry is None and case.name.endswith(".tar") and case.size % TAR_BLOCK_BYTES:
            expected = f"a multiple of {TAR_BLOCK_BYTES}, as for every tar"
            yield Finding("shard-size", case.name, f"{case.size:,} bytes", expected)
        return
    if case.examined.error is not None:
        yield finding_from_error("shard-unreadable", case.name, case.examined.error)
        return
    crc, facts = case.examined.crc, case.facts
    dataset_crc = case.entry.crc if case.entry is not None else None
    sidecar_crc = facts.crc if facts is not None and facts.name == case.name else None
    for source, expected_crc in (("the dataset file", dataset_crc), ("its sidecar", sidecar_crc)):
        if crc is not None and expected_crc not in (None, crc):
            yield Finding("shard-checksum", case.name, f"the checksum {crc:08x}", f"{expected_crc:08x}, as in {source}")
            return


def _check_content(case: ShardCheck, scan: ShardScan | None) -> Iterator[Finding]:
    if scan is None or case.examined is None:
        return
    if scan.error is not None:
        yield finding_from_error("shard-damaged", case.name, scan.error)
    for offset in scan.nonzero_padding:
        yield Finding("padding-not-zero", case.name, "bytes after a payload", "zeros to the end of the block", offset)
    for offset, problem in scan.ambiguous_headers:
        yield Finding("readers-differ", case.name, problem, offset=offset)
    yield from _find_unsafe_keys(case.name, scan)
    yield from _find_unsafe_members(case.name, scan)
    yield from _find_repeated_fields(case.name, scan)
    yield from case.examined.findings


def _find_unsafe_keys(name: str, scan: ShardScan) -> Iterator[Finding]:
    for index, key in enumerate(scan.keys):
        if problem := _unsafe_name_reason(key):
            yield Finding("key-unsafe", name, problem, offset=scan.starts[index], key=printable(key))
    for code, field in enumerate(scan.names):
        if field in RESERVED_NAMES:
            problem = f"a reserved field name, in {pluralize(scan.codes.count(code), 'sample')}"
            yield Finding("key-unsafe", name, problem, "another name", field=printable(field))
        # Slashes are allowed, as in the TFRecord feature image/encoded.
        if field[:1] == b"/" or has_parent_part(field) or _CONTROL_CHARS.search(field):
            problem = "a field with an absolute path, a part `..`, or a control character"
            problem += f", in {pluralize(scan.codes.count(code), 'sample')}"
            yield Finding("key-unsafe", name, problem, field=printable(field))


def _unsafe_name_reason(name: bytes) -> str:
    if has_parent_part(name):
        return "a part `..`"
    if name[:1] == b"/":
        return "an absolute path"
    if not name.isascii() and not is_utf8(name):
        return "invalid UTF-8"
    return "a control character" if _CONTROL_CHARS.search(name) else ""


def _find_unsafe_members(shard: str, scan: ShardScan) -> Iterator[Finding]:
    links = {member.name.rstrip(b"/") for member in scan.unrecognised if member.kind == _SYMBOLIC_LINK}
    members = (
        (member.offset, member.name, _unsafe_name_reason(member.name) or _unsafe_type_reason(member))
        for member in scan.unrecognised
    )
    for offset, name, reason in chain(members, zip(scan.starts, scan.keys, repeat("")) if links else ()):
        link = b"" if reason else _link_above(name, links)
        if problem := reason or (link and f"a name that passes through the link {printable(link)}"):
            yield Finding("member-unsafe", shard, f"{printable(name)}: {problem}", offset=offset)


def _unsafe_type_reason(member: UnrecognisedMember) -> str:
    if member.kind in _DEVICE_TYPES:
        return "a device or FIFO"
    if member.kind not in (_HARD_LINK, _SYMBOLIC_LINK):
        return ""
    # Symbolic links are relative to their folder. Hard links are relative to the root of the archive.
    folder = os.path.dirname(member.name) if member.kind == _SYMBOLIC_LINK else b""
    target = os.path.normpath(os.path.join(folder, member.link))
    # If `a` is a link, `a/..` may be any folder.
    inner_parent = re.search(rb"[^/.][^/]*/+(?:\.\.)(?:/|$)", member.link)
    if _unsafe_name_reason(target) or member.link[:1] == b"/" or inner_parent:
        return f"a link to {printable(member.link)}"
    return "a link with a control character" if _CONTROL_CHARS.search(member.link) else ""


def _link_above(name: bytes, links: set[bytes]) -> bytes:
    end = name.find(b"/") if links else -1
    while end >= 0:
        if name[:end] in links:
            return name[:end]
        end = name.find(b"/", end + 1)
    return b""


def _find_repeated_fields(name: str, scan: ShardScan) -> Iterator[Finding]:
    import numpy as np

    counts, codes = np.frombuffer(scan.counts, np.uint32), np.frombuffer(scan.codes, np.uint32)
    pairs = np.repeat(np.arange(len(counts)), counts)[: len(codes)] * max(1, len(scan.names)) + codes
    _, first, times = np.unique(pairs, return_index=True, return_counts=True)
    rows = first[times > 1]
    samples = np.searchsorted(np.cumsum(counts), rows, "right")
    for sample, row in zip(samples.tolist(), rows.tolist(), strict=True):
        key, field = decode_name(scan.keys[sample]), decode_name(scan.names[scan.codes[row]])
        problem = "the sample has this field twice"
        yield Finding("field-duplicate", name, problem, offset=scan.offsets[row], key=key, field=field)


def read_sidecar(number: int, case: ShardCheck, findings: Findings) -> bytes:
    """Check the size, checksum and format of a sidecar, and set `case.facts`.

    Return the bytes of the file, or b"" if the file is missing, unreadable, or from another tool.
    """
    from shardtool.dataset.sidecar_read import load_sidecar, parse_facts

    entry, name = case.entry, case.sidecar
    try:
        data = load_sidecar(case.shard.sidecar)
    except FileNotFoundError:
        findings.add(number, [Finding("sidecar-missing", name, "no such file")] if case.sidecar_required else [])
        return b""
    except OSError as error:
        findings.add(number, [Finding("sidecar-damaged", name, os_error_text(error))])
        return b""
    if not case.sidecar_required and _PARQUET_MAGIC not in (data[:4], data[-4:]):
        return b""
    if entry is not None and len(data) != entry.sidecar_size:
        expected = f"{entry.sidecar_size:,}{AS_LISTED}"
        findings.add(number, [Finding("sidecar-size", name, f"{len(data):,} bytes", expected)])
    elif entry is not None and (crc := crc32c(data)) != entry.sidecar_crc:
        expected = f"{entry.sidecar_crc:08x}{AS_LISTED}"
        findings.add(number, [Finding("sidecar-checksum", name, f"the checksum {crc:08x}", expected)])
    try:
        case.facts = parse_facts(data, name)
    except CorruptShard as error:
        findings.add(number, [finding_from_error("sidecar-damaged", name, error)])
    return data


def _check_sidecar_matches_shard(case: ShardCheck) -> Iterator[Finding]:
    facts, entry = case.facts, case.entry
    if facts is None:
        return
    description = f"an index of {printable(facts.name)}, {facts.size:,} bytes"
    if facts.name != case.name or (case.size is not None and facts.size != case.size):
        size = "" if case.size is None else f", {case.size:,} bytes"
        yield Finding("sidecar-stale", case.sidecar, description, f"an index of {case.name}{size}")
    elif entry is not None and None not in (facts.crc, entry.crc) and facts.crc != entry.crc:
        yield Finding("sidecar-stale", case.sidecar, f"{description}, checksum {facts.crc:08x}", f"{entry.crc:08x}")


def check_index(case: ShardCheck, scan: ShardScan | None, sidecar: bytes) -> Iterator[Finding]:
    """Parse the sidecar. If the shard was read, compare its samples with the sidecar."""
    from shardtool.dataset.shard_index import compare_indexes, scanned_index
    from shardtool.dataset.sidecar_read import parse_sidecar

    if case.facts is None or case.examined is None:
        return
    try:
        index = parse_sidecar(sidecar, case.sidecar, case.size)
    except CorruptShard as error:
        yield finding_from_error("sidecar-damaged", case.sidecar, error)
        return
    if scan is None or scan.size < 0:
        return
    for difference in compare_indexes(index, scanned_index(scan)):
        if difference.what == "samples":
            samples, expected = pluralize(len(index), "sample"), f"{difference.second}, as in the shard"
            yield Finding("index-differs", case.sidecar, samples, expected)
            continue
        key = decode_name(scan.keys[difference.sample])
        field = decode_name(scan.names[scan.codes[difference.row]]) if difference.row >= 0 else ""
        if difference.what == "checksum":
            problem, expected = f"the checksum {difference.second}", f"{difference.first}, as in its sidecar"
            yield Finding("payload-checksum", case.name, problem, expected, scan.offsets[difference.row], key, field)
            continue
        problem = f"in row {difference.sample:,}: the {difference.what} {difference.first}"
        expected = f"{difference.second}, as in the shard"
        yield Finding("index-differs", case.sidecar, problem, expected, scan.starts[difference.sample], key, field)


def _check_entry(case: ShardCheck, scan: ShardScan | None) -> Iterator[Finding]:
    entry = case.entry
    if entry is None or scan is None or scan.error is not None:
        return
    if entry.samples != len(scan.keys):
        yield Finding("totals-differ", case.name, pluralize(len(scan.keys), "sample"), f"{entry.samples:,}{AS_LISTED}")
        return
    ends = [decode_name(scan.keys[index]) for index in (0, -1)] if scan.keys else ["", ""]
    for which, recorded, key in zip(("first", "last"), (entry.first_key, entry.last_key), ends, strict=True):
        if recorded != key:
            problem = f"the {which} key {printable(key)}"
            yield Finding("totals-differ", case.name, problem, f"{printable(recorded)}{AS_LISTED}")


def check_all(case: ShardCheck, scan: ShardScan | None, sidecar: bytes) -> Iterator[Finding]:
    """Run all checks of one shard. `scan` is None if the shard was not read."""
    yield from check_shard(case)
    yield from _check_sidecar_matches_shard(case)
    yield from _check_content(case, scan)
    yield from check_index(case, scan, sidecar)
    yield from _check_entry(case, scan)
