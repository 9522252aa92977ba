"""`verify --target`: what a reader would get wrong of a dataset as it lies there.

Each verdict was tried with the reader itself (tests/clients/test_targets.py). Of DALI it depends on its index: with one
beside each shard it looks at no name; without, it finds the fields by the members' names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.check.findings import Finding, Findings
from shardtool.dataset.shard_file import is_packed
from shardtool.dataset.walk import walked_text
from shardtool.errors import listing, printable
from shardtool.interop.export_formats import EXPORTS
from shardtool.interop.huggingface import README, is_ours, misreading
from shardtool.interop.index_forms import index_name
from shardtool.storage.places import base_name, folder_of, is_file, join, names_in, read_small
from shardtool.values import counted, output_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.check.subject import Subject
    from shardtool.dataset.walk import Survey

_ELSEWHERE = ("space-in-key", "meta-field", "text-label", "missing-field")  # notes only, or see `_fields`
_WITHOUT_INDEX = ("dot-in-key", "pax-name")  # what DALI gets wrong where it has none
_PLAIN_ONLY = ("wids", "dali", "energon")  # read no compressed shards
_FIRST = 5  # samples that `load_dataset` looks at


def check_targets(subject: Subject, shards: Sequence[Survey], targets: Sequence[str]) -> Findings:
    """Find what readers get wrong."""
    findings, last = Findings(checked=[f"names for {one}" for one in targets]), len(subject.cases)
    if any(one.format != "tar" for one in shards):
        tar_only = [target for target in targets if target != "dali"]
        if tar_only:
            findings.add(last, Finding("target-format", ", ".join(tar_only), "TFRecord shards", "tar shards"))
        if "dali" in targets:
            findings.unchecked.append("names for dali: it finds those of TFRecord shards by what it is asked for")
        return findings
    packed = [case.name for case in subject.cases if case.size is not None and is_packed(case.path)]
    refusing = [target for target in targets if packed and target in _PLAIN_ONLY]
    if refusing:
        found = Finding("target-format", ", ".join(refusing), f"compressed shards: {listing(packed, 3)}", "plain ones")
        findings.add(last, found)
    findings.add(last, *_names(subject, shards, targets), *_shard_names(subject, targets))
    if "huggingface" in targets:
        findings.add(last, *_fields(shards))
        findings.take(_folder(subject))
    return findings


def _names(subject: Subject, shards: Sequence[Survey], targets: Sequence[str]) -> Iterator[Finding]:
    """Yield kinds of keys and fields that a reader gets wrong."""
    from shardtool.check.source import entries_of
    from shardtool.interop.portability import READERS, misreads

    indexed = all(_has_dali_index(case.path) for case in subject.cases)
    for one in misreads(entries_of(shards)):
        spared = ("dali",) if one.code in _WITHOUT_INDEX and indexed else ()
        getting_wrong = () if one.code in _ELSEWHERE else READERS[one.code]
        if readers := [target for target in targets if target in getting_wrong and target not in spared]:
            what = f"{one.code}: {counted(one.count, one.what)}, such as '{one.example}'"
            yield Finding("misread", ", ".join(readers), what, one.readers)


def _has_dali_index(path: str) -> bool:
    name = index_name(output_text(base_name(path)), EXPORTS["dali-webdataset"])
    return is_file(join(folder_of(path), name))


def _shard_names(subject: Subject, targets: Sequence[str]) -> Iterator[Finding]:
    from shardtool.interop.portability import unopenable

    for target in targets:
        bad = [case.name for case in subject.cases if target in unopenable(case.name)]
        if bad:
            yield Finding("target-name", target, listing(bad, 3), f"{target} {unopenable(bad[0])[target]}")


def _fields(shards: Sequence[Survey]) -> Iterator[Finding]:
    """Yield what `load_dataset` makes of samples that lack fields: it takes the first ones' for those of all."""
    reader, known = "huggingface", frozenset[bytes]()
    for one in shards:
        samples = list(_field_sets(one))
        if not samples:
            continue
        if not known:
            known = samples[0]
            if unlike := [at for at, fields in enumerate(samples[:_FIRST]) if fields != known]:
                differ = known ^ samples[unlike[0]]
                what = f"{_named(differ)}: not in all of the first five samples, so that it refuses the dataset"
                yield Finding("target-fields", reader, what, "the same fields in each of them")
                return
        if late := frozenset().union(*samples) - known:
            what = f"{_named(late)}: not in the first samples, so that it drops it; first in {output_text(one.path)}"
            yield Finding("target-fields", reader, what, "in the first five samples, too")
            return


def _field_sets(one: Survey) -> Iterator[frozenset[bytes]]:
    row = 0
    for count in one.counts:
        yield frozenset(one.names[code] for code in one.codes[row : row + count])
        row += count


def _named(fields: frozenset[bytes]) -> str:
    return f"the field {listing(sorted(printable(walked_text(name)) for name in fields), 3)}"


def _folder(subject: Subject) -> Findings:
    """Find what `load_dataset(folder)` takes for the data, if that is not the shards."""
    findings, folder = Findings(), subject.found.folder
    names = names_in(folder)
    if README in names:
        try:
            data = read_small(join(folder, README), 2**24)
        except OSError:
            data = b""
        if is_ours(data):
            return findings
        if b"data_files" in data:
            findings.unchecked.append(f"{README}: whether the data_files in it are the shards")
            return findings
    if wrong := misreading(map(output_text, names)):
        found = f"load_dataset(folder) {wrong}"
        findings.add(len(subject.cases), Finding("target-folder", "huggingface", found, "the shards"))
    return findings
