"""Compare the index files of other tools with the shards."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.dataset.scan import ShardScanTask, scan_shard
from shardtool.errors import AccessRefused, ShardError, StoreFailed
from shardtool.interop import exports, huggingface, indexed_shard
from shardtool.names import to_output_name
from shardtool.pattern import is_shard_name
from shardtool.storage.files import files_at, list_folder_names, read_head
from shardtool.storage.paths import base_name, folder_of, join
from shardtool.storage.remote.address import is_url
from shardtool.verbs.verify.findings import Finding, Findings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.execute.pool import Pool
    from shardtool.interop.exports import ExportFormat
    from shardtool.verbs.verify.verified_dataset import VerifiedDataset


EXPORT_STALE = "export-stale"


def check_exports(subject: VerifiedDataset, pool: Pool) -> Findings:
    """Find index files of other tools that do not match the shards that were read."""
    findings, names = Findings(), set(list_folder_names(subject.folder))
    other_names = names - {base_name(subject.dataset.dataset_file or "")}
    tasks: dict[int, tuple[ShardScanTask, Sequence[str]]] = {}
    for number, case in enumerate(subject.cases):
        name = case.shard.file_name
        files = [*exports.find_index_names(name, other_names)]
        if files and case.is_readable and is_shard_name(name):
            tasks[number] = ShardScanTask(case.shard.path, dots=case.shard.dots), files
    numbers = [*tasks]
    for index, (problems, unknown_names) in pool.map(_compare_exports, iter(tasks.values())):
        findings.add(numbers[index], problems)
        findings.unchecked += [f"{to_output_name(name)}: not a known index format" for name in unknown_names]
    if subject.file is not None and subject.has_all_shards:
        for export in exports.FOLDER_EXPORTS:
            findings.merge(_check_counts(subject.folder, subject.file, export))
        findings.add(-1, _check_readme(subject, subject.file, names))
    return findings


def _compare_exports(task: tuple[ShardScanTask, Sequence[str]]) -> tuple[list[Finding], list[str]]:
    (shard_task, files), formats = task, dict[str, str]()
    folder, shard_name = folder_of(shard_task.path), to_output_name(base_name(shard_task.path))
    for name in files:
        with suppress(OSError, AccessRefused):  # without list permission, stores refuse access to missing files
            if format_name := exports.detect_export(name, *read_head(join(folder, name), exports.PROBE_BYTES)):
                formats[name] = format_name
    unknown = [name for name in files if name not in formats and not name.endswith(".json")]
    if not formats:
        return [], unknown
    from shardtool.dataset.shard_index import scanned_index
    from shardtool.publish.foreign_index_files import read_foreign_index

    try:
        scan = scan_shard(shard_task)
        if scan.error is not None:
            raise scan.error
        index = scanned_index(scan)
        hash_task = indexed_shard.ShardHashTask.of(shard_task.path, scan.size, index)
        hashed = any(exports.EXPORTS[format_name].has_hashes for format_name in formats.values())
        hashes = indexed_shard.hash_shard(hash_task, lambda _, __: None) if hashed else None
        shard = indexed_shard.IndexedShard(index, hashes)
    except StoreFailed:
        raise
    except ShardError:
        return [], unknown  # other checks report the damaged shard
    findings = []
    for name, format_name in formats.items():
        if problem := read_foreign_index(join(folder, name), format_name, shard)[1]:
            expected = f"an index of {shard_name}, for {exports.EXPORTS[format_name].reader}"
            findings.append(Finding(EXPORT_STALE, to_output_name(name), problem, expected))
    return findings, unknown


def _check_counts(folder: str, file: DatasetFile, export: ExportFormat) -> Findings:
    findings = Findings()
    subfolder = folder_of(export.folder_file)
    if subfolder and not is_url(folder) and subfolder not in files_at(folder).list_folders(folder):
        return findings  # the subfolder is missing, or is a link, which is not followed
    counts = export.sample_counts(exports.read_index_list(join(folder, export.folder_file)))
    shards = {shard.name: shard.samples for shard in file.shards if shard.samples}
    if not counts.keys() & shards.keys():
        return findings
    for first in file.appends:
        later = [shard.name for shard in file.shards[first:]]
        if not counts.keys() & {*later}:
            covered = f"it covers only the first {first:,} shards"
            findings.unchecked.append(f"{export.reader}'s index of the folder: {covered}")
            shards = {name: samples for name, samples in shards.items() if name not in later}
            break
    for name, samples in shards.items():
        if counts.get(name) != samples:
            found = f"{counts[name]:,} samples in {name}" if name in counts else f"no shard {name}"
            findings.add(-1, [Finding(EXPORT_STALE, export.folder_file, found, f"{samples:,} samples")])
            break
    return findings


def _check_readme(subject: VerifiedDataset, file: DatasetFile, names: set[str]) -> Iterator[Finding]:
    data = exports.read_index_list(join(subject.folder, huggingface.README_FILE))
    if not huggingface.is_own_readme(data):
        return
    existing, shards = {*map(to_output_name, names)}, {shard.name for shard in file.shards}
    listed = huggingface.readme_shards(data, existing | shards)
    if listed & shards and (missing := sorted(shards - listed)):
        yield Finding(EXPORT_STALE, huggingface.README_FILE, f"{missing[0]} is not listed", "all shards of the dataset")
    if listed & shards and (unknown := sorted(listed - existing - shards)):
        problem = f"{unknown[0]} is listed, but is not a shard"
        yield Finding(EXPORT_STALE, huggingface.README_FILE, problem, "shard names")
