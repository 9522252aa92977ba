"""Check all shards of a dataset together: names, duplicate keys, totals, and fingerprint."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING

from shardtool.dataset import expand, find, unfinished
from shardtool.dataset.scan import ShardScan, decode_name
from shardtool.errors import AccessRefused, format_list, printable
from shardtool.fingerprint import crc32c, format_fingerprint
from shardtool.messages import call_text
from shardtool.names import to_output_name
from shardtool.pattern import DATASET_SUFFIX, SIDECAR_SUFFIX, is_shard_name, parse_numbered_name, sidecar_name
from shardtool.storage import paths
from shardtool.storage.files import list_folder_names, read_small
from shardtool.storage.paths import join
from shardtool.storage.remote.address import is_url, is_web
from shardtool.units import pluralize
from shardtool.verbs.verify.findings import MAX_LISTED_PER_FILE, Finding, Findings
from shardtool.verbs.verify.verified_dataset import AS_LISTED, VerifiedDataset, printable_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.values import DatasetLike


_MAX_GAPS = 1000
_NUMBERED_NAME = re.compile(r"(.*?)(\d{1,18})(\D*)", re.ASCII)


def check_numbering(subject: VerifiedDataset) -> Findings:
    """Find gaps in shard numbers and unlisted files, and check the list of skipped samples."""
    findings, file = Findings(), subject.file
    if file is None and subject.dataset.has_own_file:
        findings.unchecked.append("unlisted shards: the dataset file is damaged")
    findings.add(-1, _find_gaps(subject))
    try:
        names = _names_in_folders(subject, needed=True)
    except AccessRefused:
        names = set()
        findings.unchecked.append("files that the dataset file does not list: the store refuses to list files")
    if file is None:
        neighbours = _neighbouring_datasets(subject, names) if subject.dataset.dataset_file is None else {}
        for name, shards in neighbours.items():
            findings.unchecked.append(f"the dataset file {to_output_name(name)} of {pluralize(len(shards), 'shard')}")
        return findings
    listed = {entry.name for entry in file.shards}
    extra = [*_find_extra_files(file, names, listed)] if subject.has_all_shards else []
    findings.add(-1, extra)
    reported, given_names = listed.union(finding.file for finding in extra), {case.name for case in subject.cases}
    for number, case in enumerate(subject.cases):
        if case.name not in reported:
            findings.add(number, [Finding("shard-extra", case.name, "not in the dataset file")])
    if subject.has_all_shards:
        findings.add(-1, _check_skipped_list(subject.folder, file))
        return findings
    names_unknown = not names or is_web(subject.folder)
    missing = [] if names_unknown else sorted(listed.difference(map(to_output_name, names), given_names))
    missing_text = f"; missing in the folder: {format_list(missing)}" if missing else ""
    counts = f"{len(subject.cases):,} of its {pluralize(len(file.shards), 'shard')} were given{missing_text}"
    findings.unchecked.append(f"totals and the fingerprint of {subject.name}: {counts}")
    return findings


def check_complete(subject: VerifiedDataset) -> Iterator[Finding]:
    """If the dataset file is missing or damaged, check that all shards of the run exist.

    Sidecars record how many shards the run planned.
    """
    missing = _missing_dataset_file_finding(subject)
    if missing is None and not (subject.file is None and subject.dataset.has_own_file):
        return
    existing = [case for case in subject.cases if case.size is not None]
    facts = [case.facts if case.facts and case.facts.name == case.name else None for case in existing]
    problems = [*unfinished.describe_unfinished(facts, unfinished.sibling_facts(subject.dataset))]
    folder = printable_name(subject.folder or ".")
    yield from (Finding("dataset-incomplete", folder, problem, unfinished.ALL_SHARDS) for problem in problems)
    if missing is not None and not problems:
        yield missing


def _names_in_folders(subject: VerifiedDataset, *, needed: bool = False) -> set[str]:
    if is_web(subject.folder):
        return {case.sidecar for case in subject.cases if case.facts is not None}
    folders = {subject.folder, *subject.dataset.folders()}
    return {name for folder in folders for name in list_folder_names(folder, needed=needed)}


def _neighbouring_datasets(subject: VerifiedDataset, names: set[str]) -> dict[str, set[str]]:
    # For each dataset file in the folder that lists a shard of `subject`, return all shards that it lists.
    unlisted, datasets = {case.name for case in subject.cases}, dict[str, set[str]]()
    if names.isdisjoint(case.sidecar for case in subject.cases):
        return datasets  # without sidecars, a dataset file may describe other shards with the same names
    for name in sorted(name for name in names if name.endswith(DATASET_SUFFIX)):
        if unlisted & (listed := find.names_listed_by(join(subject.folder, name))):
            unlisted -= listed
            datasets[name] = listed
    return datasets


def _missing_dataset_file_finding(subject: VerifiedDataset) -> Finding | None:
    if subject.dataset.dataset_file is not None or _is_one_file(subject.dataset.argument):
        return None
    names = _names_in_folders(subject)
    if not (sidecars := names & {case.sidecar for case in subject.cases}):
        return None
    if {case.name for case in subject.cases} <= set[str]().union(*_neighbouring_datasets(subject, names).values()):
        return None
    damaged = find.find_damaged_file(subject.dataset)
    state = f"a damaged {printable_name(damaged)}" if damaged else "no dataset file"
    problem = f"{pluralize(len(sidecars), 'sidecar')} and {state}; shards may be missing"
    return Finding("dataset-file-missing", printable_name(subject.folder or "."), problem)


def _is_one_file(given: DatasetLike) -> bool:
    if not isinstance(given, (str, os.PathLike)):
        return False
    path = os.fspath(given)
    if is_url(path):
        return is_shard_name(paths.base_name(path)) and "{" not in path
    return os.path.isfile(path)


def _find_extra_files(file: DatasetFile, names: set[str], listed: set[str]) -> Iterator[Finding]:
    if (pattern := expand.recorded_range(file)) is None:
        return
    listed_files = listed.union(shard.sidecar for shard in file.shards)
    for name in sorted((name for name in names if to_output_name(name) not in listed_files), key=find.natural_key):
        kind = "sidecar" if name.endswith(SIDECAR_SUFFIX) else "shard"
        if pattern.owns(name) and (kind == "sidecar" or is_shard_name(name)):
            yield Finding(f"{kind}-extra", to_output_name(name), "not in the dataset file")


def _find_gaps(subject: VerifiedDataset) -> Iterator[Finding]:
    names = [shard.file_name for shard in subject.dataset.shards]
    for name in subject.dataset.missing:
        yield Finding("shard-missing", to_output_name(name), "missing, although the pattern includes it")
    if subject.file is not None:
        # `index` lists only shards that it finds, so a missing number may be a lost shard. Other verbs list all shards.
        is_complete = not subject.has_all_shards or subject.file.run.verb != "index"
        names = [] if is_complete else [shard.name for shard in subject.file.shards]
    elif subject.dataset.missing or not isinstance(subject.dataset.argument, (str, os.PathLike)):
        return
    yield from islice(_missing_numbers(names), _MAX_GAPS)


def _missing_numbers(names: list[str]) -> Iterator[Finding]:
    series: dict[tuple[str, str, int, int], set[int]] = {}
    for name in names:
        stem = sidecar_name(name).removesuffix(SIDECAR_SUFFIX)
        if parsed := parse_numbered_name(name):
            prefix, number, width, total = parsed
            series.setdefault((prefix, f"-of-{total:0{width}d}", width, total), set()).add(number)
        elif match := _NUMBERED_NAME.fullmatch(stem):
            width = len(match[2]) if match[2][0] == "0" else 0
            series.setdefault((match[1], match[3] + name[len(stem) :], width, 0), set()).add(int(match[2]))
    for (prefix, suffix, width, total), numbers in series.items():
        expected = f"{pluralize(total, 'shard')}, according to their names" if total else "a shard with this number"
        for number in range(total) if total else range(min(numbers), max(numbers)):
            if number not in numbers:
                missing = to_output_name(f"{prefix}{number:0{width}d}{suffix}")
                yield Finding("numbering-gap", missing, "missing", expected)


def _check_skipped_list(folder: str, file: DatasetFile) -> Iterator[Finding]:
    name = f"{file.name}.skipped"
    try:
        data = read_small(join(folder, file.skipped_file))
    except (FileNotFoundError, AccessRefused) as error:  # some stores refuse access to missing objects
        if file.skipped and not isinstance(error, FileNotFoundError):
            raise
        data = b""
    except (OSError, ValueError) as error:
        yield Finding("skipped-differs", name, str(error))
        return
    rows = data.count(b"\n")
    if rows != file.skipped:
        yield Finding("skipped-differs", name, pluralize(rows, "row"), f"{file.skipped:,}{AS_LISTED}")
    elif file.skipped_crc not in (None, crc := crc32c(data)):
        yield Finding("skipped-differs", name, f"the checksum {crc:08x}", f"{file.skipped_crc:08x}")


def check_totals(subject: VerifiedDataset, scans: Mapping[int, ShardScan]) -> Findings:
    """Find duplicate keys, and compare totals and the fingerprint with the dataset file."""
    findings = _find_duplicate_keys(subject, scans)
    file, unchecked = subject.file, findings.unchecked
    if file is None:
        return findings
    if subject.is_partial:
        unchecked.append("totals and the fingerprint: not all shards were read")
    elif any(not case.examined or case.examined.error or case.examined.damage for case in subject.cases):
        unchecked.append("totals and the fingerprint: some shards cannot be read completely")
    elif subject.has_all_shards and len(subject.cases) == len(file.shards):
        fields, digests = subject.fields, [shard.digest for _, shard in subject.examined]
        for name in sorted({*file.fields, *fields}, key=str):
            if file.fields.get(name) != fields.get(name):
                what = pluralize(file.fields.get(name, 0), f"sample with the field {printable(name)}")
                expected = f"{fields.get(name, 0):,}, as in the shards"
                findings.add(-1, [Finding("totals-differ", subject.name, what, expected)])
        if not file.fingerprint:
            unchecked.append(f"the fingerprint: not recorded; {call_text('index', checksum=True)} adds it")
        elif None in digests:
            unchecked.append("the fingerprint: TFRecord shards do not store the original text of floats")
        elif (total := format_fingerprint(sum(digest or 0 for digest in digests))) != file.fingerprint:
            found, expected = printable(file.fingerprint), f"{total}, computed from the shards"
            findings.add(-1, [Finding("fingerprint-differs", subject.name, found, expected)])
    return findings


def _find_duplicate_keys(subject: VerifiedDataset, scans: Mapping[int, ShardScan]) -> Findings:
    import numpy as np

    findings, pairs = Findings(), subject.hashes()
    firsts = np.sort(pairs["a"])
    if not np.any(firsts[1:] == firsts[:-1]):
        return findings
    order = np.lexsort((pairs["b"], pairs["a"]))
    ordered = pairs[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    findings.counts["key-duplicate"] += max(0, len(same) - MAX_LISTED_PER_FILE)
    known_scans = dict(scans)
    for row in same[:MAX_LISTED_PER_FILE].tolist():
        indexes = sorted((int(order[row]), int(order[row + 1])))
        (first, key), (second, _) = (sample_at(subject, known_scans, index) for index in indexes)
        found = f"also in {'the same shard' if first == second else subject.cases[first].name}"
        findings.add(second, [Finding("key-duplicate", subject.cases[second].name, found, key=key)])
    return findings


def sample_at(subject: VerifiedDataset, scans: dict[int, ShardScan], index: int) -> tuple[int, str]:
    """Return the shard number and key of sample `index`, counted over all examined shards.

    If `scans` lacks the shard, add its scan.
    """
    ends = subject.ends()
    position = bisect_right(ends, index)
    number, _ = subject.examined[position]
    if number not in scans:
        scans[number] = subject.cases[number].shard.scan()
    keys = scans[number].keys
    row = index - (ends[position - 1] if position else 0)
    return number, decode_name(keys[row]) if row < len(keys) else ""
