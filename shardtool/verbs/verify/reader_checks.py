"""`verify --for`: find names and fields that readers of other tools would misread.

tests/clients/test_targets.py runs the readers to confirm each rule. DALI uses the names of tar members only if
shards have no DALI index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.dataset.scan import ShardScan, decode_name
from shardtool.dataset.shard_file import is_compressed
from shardtool.errors import format_list, printable
from shardtool.interop import exports, huggingface
from shardtool.names import to_output_name
from shardtool.storage.files import is_file, list_folder_names
from shardtool.storage.paths import folder_of, join
from shardtool.units import pluralize
from shardtool.verbs.verify.findings import Finding, Findings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.verbs.verify.verified_dataset import VerifiedDataset


# These rules describe no errors, except `missing-field`, which `_find_missing_fields` checks.
_NOTE_ONLY_RULES = ("space-in-key", "meta-field", "text-label", "missing-field")
_DALI_NAME_RULES = ("dot-in-key", "pax-name")
_UNCOMPRESSED_ONLY = ("wids", "dali", "energon")
_INSPECTED_SAMPLES = 5  # `load_dataset` infers the fields from this many samples


def check_readers(subject: VerifiedDataset, shards: Sequence[ShardScan], targets: Sequence[str]) -> Findings:
    """Find what the readers in `targets` would misread in the scanned shards."""
    findings, last = Findings(), len(subject.cases)
    findings.checked += [f"names for {target}" for target in targets]
    if any(shard.format != "tar" for shard in shards):
        tar_only = [target for target in targets if target != "dali"]
        if tar_only:
            findings.add(last, [Finding("target-format", ", ".join(tar_only), "TFRecord shards", "tar shards")])
        if "dali" in targets:
            findings.unchecked.append("names for dali: for TFRecord shards, the features are set in the pipeline")
        return findings
    packed = [case.name for case in subject.cases if case.size is not None and is_compressed(case.shard.path)]
    refusing = [target for target in targets if packed and target in _UNCOMPRESSED_ONLY]
    if refusing:
        found = f"compressed shards: {format_list(packed, 3)}"
        findings.add(last, [Finding("target-format", ", ".join(refusing), found, "uncompressed shards")])
    findings.add(last, _check_names(subject, shards, targets))
    findings.add(last, _check_shard_names(subject, targets))
    if "huggingface" in targets:
        findings.add(last, _find_missing_fields(shards))
        findings.merge(_check_huggingface_folder(subject.folder, last))
    return findings


def _check_names(subject: VerifiedDataset, shards: Sequence[ShardScan], targets: Sequence[str]) -> Iterator[Finding]:
    from shardtool.dataset.shard_index import scanned_index
    from shardtool.interop.readers import READERS_BY_PROBLEM, ReaderProblems

    dali = exports.EXPORTS["dali-webdataset"]
    stored_shards = subject.dataset.shards
    indexed = all(is_file(join(folder_of(shard.path), exports.index_name(shard.name, dali))) for shard in stored_shards)
    problems = ReaderProblems()
    for shard in shards:
        problems.add_shard(scanned_index(shard))
    for problem in problems.problems():
        unaffected = ("dali",) if problem.code in _DALI_NAME_RULES and indexed else ()
        affected = () if problem.code in _NOTE_ONLY_RULES else READERS_BY_PROBLEM[problem.code]
        if readers := [target for target in targets if target in affected and target not in unaffected]:
            description = f"{problem.code}: {pluralize(problem.count, problem.what)}, such as '{problem.example}'"
            yield Finding("misread", ", ".join(readers), description, problem.readers)


def _check_shard_names(subject: VerifiedDataset, targets: Sequence[str]) -> Iterator[Finding]:
    from shardtool.interop.readers import unopenable_by

    for target in targets:
        bad = [case.name for case in subject.cases if target in unopenable_by(case.name)]
        if bad:
            yield Finding("target-name", target, format_list(bad, 3), f"{target} {unopenable_by(bad[0])[target]}")


def _find_missing_fields(shards: Sequence[ShardScan]) -> Iterator[Finding]:
    reader, first_fields = "huggingface", frozenset[bytes]()
    for shard in shards:
        samples = [frozenset(map(shard.names.__getitem__, codes)) for codes in shard.fields()]
        if not samples:
            continue
        if not first_fields:
            first_fields = samples[0]
            if different := [at for at, fields in enumerate(samples[:_INSPECTED_SAMPLES]) if fields != first_fields]:
                difference = first_fields ^ samples[different[0]]
                problem = "fields that are not in all of the first five samples, so `load_dataset` refuses the dataset"
                problem += f": {_field_names(difference)}"
                yield Finding("target-fields", reader, problem, "the same fields in each of these samples")
                return
        if late := frozenset().union(*samples) - first_fields:
            problem = f"fields that are not in the first samples, so `load_dataset` drops them: {_field_names(late)}"
            problem += f"; first in {to_output_name(shard.path)}"
            yield Finding("target-fields", reader, problem, "the fields in the first five samples, too")
            return


def _field_names(fields: frozenset[bytes]) -> str:
    return format_list(sorted(printable(decode_name(name)) for name in fields), 3)


def _check_huggingface_folder(folder: str, last: int) -> Findings:
    findings, names = Findings(), list_folder_names(folder)
    if huggingface.README_FILE in names:
        data = exports.read_index_list(join(folder, huggingface.README_FILE))
        if huggingface.is_own_readme(data):
            return findings
        if b"data_files" in data:
            findings.unchecked.append(f"{huggingface.README_FILE}: whether its data_files are the shards")
            return findings
    if wrong := huggingface.describe_misreading(map(to_output_name, names)):
        findings.add(last, [Finding("target-folder", "huggingface", f"load_dataset(folder) {wrong}", "the shards")])
    return findings
