"""`verify --for`: what another tool's reader would get wrong.

Each verdict was tried with the reader itself (tests/clients/test_targets.py). DALI with an index next to each shard
looks at
no name; without an index it finds fields by the members' names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.dataset.scan import ShardScan, index_text
from shardtool.errors import format_list, printable
from shardtool.interop import exports, huggingface
from shardtool.names import to_output_name
from shardtool.storage.lookup import is_file, list_folder_names
from shardtool.storage.paths import folder_of, join
from shardtool.units import pluralize
from shardtool.verbs.verify.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.verbs.verify.verified_dataset import VerifiedDataset


_NOTE_ONLY_RULES = ("space-in-key", "meta-field", "text-label", "missing-field")  # notes only, or see `_fields`


_DALI_NAME_RULES = ("dot-in-key", "pax-name")  # what DALI gets wrong where it has none


_UNCOMPRESSED_ONLY = ("wids", "dali", "energon")  # read no compressed shards


_INSPECTED_SAMPLES = 5  # samples that `load_dataset` looks at


def check_readers(subject: VerifiedDataset, shards: Sequence[ShardScan], targets: Sequence[str]) -> None:
    """Find what readers get wrong."""
    findings, last = subject.findings, len(subject.cases)
    findings.checked += [f"names for {one}" for one in targets]
    if any(one.format != "tar" for one in shards):
        tar_only = [target for target in targets if target != "dali"]
        if tar_only:
            findings.add(last, Finding("target-format", ", ".join(tar_only), "TFRecord shards", "tar shards"))
        if "dali" in targets:
            findings.unchecked.append("names for dali: it finds those of TFRecord shards by what it is asked for")
        return
    packed = [case.name for case in subject.cases if case.size is not None and case.shard.packed]
    refusing = [target for target in targets if packed and target in _UNCOMPRESSED_ONLY]
    if refusing:
        found = Finding(
            "target-format", ", ".join(refusing), f"compressed shards: {format_list(packed, 3)}", "plain ones"
        )
        findings.add(last, found)
    findings.add(last, *_check_names(subject, shards, targets), *_check_shard_names(subject, targets))
    if "huggingface" in targets:
        findings.add(last, *_find_missing_fields(shards))
        _check_huggingface_folder(subject)


def _check_names(subject: VerifiedDataset, shards: Sequence[ShardScan], targets: Sequence[str]) -> Iterator[Finding]:
    """Yield kinds of keys and fields that a reader gets wrong."""
    from shardtool.dataset.shard_index import scanned_index
    from shardtool.interop.readers import READERS_BY_PROBLEM, ReaderProblems

    dali = exports.EXPORTS["dali-webdataset"]
    shards_there = subject.dataset.shards
    indexed = all(is_file(join(folder_of(one.path), exports.index_name(one.name, dali))) for one in shards_there)
    found = ReaderProblems()
    for shard in shards:
        found.add_shard(scanned_index(shard))
    for one in found.problems():
        spared = ("dali",) if one.code in _DALI_NAME_RULES and indexed else ()
        getting_wrong = () if one.code in _NOTE_ONLY_RULES else READERS_BY_PROBLEM[one.code]
        if readers := [target for target in targets if target in getting_wrong and target not in spared]:
            what = f"{one.code}: {pluralize(one.count, one.what)}, such as '{one.example}'"
            yield Finding("misread", ", ".join(readers), what, one.readers)


def _check_shard_names(subject: VerifiedDataset, targets: Sequence[str]) -> Iterator[Finding]:
    from shardtool.interop.readers import unopenable_by

    for target in targets:
        bad = [case.name for case in subject.cases if target in unopenable_by(case.name)]
        if bad:
            yield Finding("target-name", target, format_list(bad, 3), f"{target} {unopenable_by(bad[0])[target]}")


def _find_missing_fields(shards: Sequence[ShardScan]) -> Iterator[Finding]:
    """Yield what `load_dataset` makes of samples that lack fields: it takes the first ones' for those of all."""
    reader, known = "huggingface", frozenset[bytes]()
    for one in shards:
        samples = [frozenset(map(one.names.__getitem__, codes)) for codes in one.fields()]
        if not samples:
            continue
        if not known:
            known = samples[0]
            if unlike := [at for at, fields in enumerate(samples[:_INSPECTED_SAMPLES]) if fields != known]:
                differ = known ^ samples[unlike[0]]
                what = f"{_field_names(differ)}: not in all of the first five samples, so that it refuses the dataset"
                yield Finding("target-fields", reader, what, "the same fields in each of them")
                return
        if late := frozenset().union(*samples) - known:
            what = f"{_field_names(late)}: not in the first samples, so that it drops it; first in {to_output_name(one.path)}"
            yield Finding("target-fields", reader, what, "in the first five samples, too")
            return


def _field_names(fields: frozenset[bytes]) -> str:
    return f"the field {format_list(sorted(printable(index_text(name)) for name in fields), 3)}"


def _check_huggingface_folder(subject: VerifiedDataset) -> None:
    """Find what `load_dataset(folder)` takes for the data, if that is not the shards."""
    names, folder = list_folder_names(subject.folder), subject.folder
    if huggingface.README_FILE in names:
        data = exports.read_index_list(join(folder, huggingface.README_FILE))
        if huggingface.is_own_readme(data):
            return
        if b"data_files" in data:
            subject.findings.unchecked.append(f"{huggingface.README_FILE}: whether the data_files in it are the shards")
            return
    if wrong := huggingface.describe_misreading(map(to_output_name, names)):
        found = f"load_dataset(folder) {wrong}"
        subject.findings.add(len(subject.cases), Finding("target-folder", "huggingface", found, "the shards"))
