"""Compare the index files of other tools with the shards that they point into.

They are not part of a dataset, and no checksum covers them; but a reader with a stale index returns wrong bytes
without an
error. A file with the name of an index but another format is reported as unchecked.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.dataset.scan import ShardScanTask, scan_shard
from shardtool.errors import AccessRefused, ShardError, StoreFailed
from shardtool.interop import exports, huggingface, indexed_shard
from shardtool.names import to_output_name
from shardtool.shard_names import is_shard_name
from shardtool.storage.files import read_head
from shardtool.storage.lookup import list_folder_names, list_folders
from shardtool.storage.paths import base_name, folder_of, join
from shardtool.storage.remote.address import is_url
from shardtool.verbs.verify.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.execute.pool import Pool
    from shardtool.interop.exports import FolderIndex
    from shardtool.verbs.verify.verified_dataset import VerifiedDataset


EXPORT_STALE = "export-stale"


def check_exports(subject: VerifiedDataset, pool: Pool) -> None:
    """Find index files that lead into other bytes than those of their shards, of the shards that were read."""
    findings, names = subject.findings, set(list_folder_names(subject.folder))
    beside = names - {base_name(subject.dataset.dataset_file or "")}
    tasks: dict[int, tuple[ShardScanTask, Sequence[str]]] = {}
    for number, case in enumerate(subject.cases):
        name = case.shard.file_name
        files = [*exports.find_index_names(name, beside)]
        if files and case.scan is not None and is_shard_name(name):
            tasks[number] = ShardScanTask(case.shard.path, dots=case.shard.dots), files
    numbers = [*tasks]
    for place, (found, unknown) in pool.map(compare_exports, iter(tasks.values())):
        findings.add(numbers[place], *found)
        findings.unchecked += [f"{to_output_name(name)}: in no form of an index that is known" for name in unknown]
    if subject.file is not None and subject.is_all:  # what tells of all shards was not named with some of them
        for form, once in exports.FOLDER_INDEXES.items():
            _check_counts(subject, subject.file, exports.EXPORTS[form].reader, once)
        findings.add(-1, *_check_readme(subject, subject.file, names))


def compare_exports(task: tuple[ShardScanTask, Sequence[str]]) -> tuple[list[Finding], list[str]]:
    """Compare files beside a shard that may be its indexes with what lies in it.

    Returns:
        Findings, and the names of files in no known form.
    """
    (shard_task, files), forms = task, dict[str, str]()
    folder, shard_name = folder_of(shard_task.path), to_output_name(base_name(shard_task.path))
    for name in files:
        with suppress(OSError, AccessRefused):  # the latter is said of what is not there, too, where we may not list
            if form := exports.detect_export(name, *read_head(join(folder, name), exports.PROBE_BYTES)):
                forms[name] = form
    unknown = [name for name in files if name not in forms and not name.endswith(".json")]
    if not forms:
        return [], unknown
    from shardtool.dataset.shard_index import scanned_index
    from shardtool.publish.foreign_index_files import read_foreign_index

    try:
        found = scan_shard(shard_task)
        if found.error is not None:
            raise found.error
        index = scanned_index(found)
        wanted = indexed_shard.ShardHashTask.of(shard_task.path, found.size, index)
        hashed = any(exports.EXPORTS[form].hashed for form in forms.values())
        shard = indexed_shard.IndexedShard(
            index, indexed_shard.hash_shard(wanted, lambda _, __: None) if hashed else None
        )
    except StoreFailed:
        raise
    except ShardError:
        return [], unknown  # a damaged shard, which other checks report
    findings = []
    for name, form in forms.items():
        if wrong := read_foreign_index(join(folder, name), form, shard)[1]:
            expected = f"an index of {shard_name}, for {exports.EXPORTS[form].reader}"
            findings.append(Finding(EXPORT_STALE, to_output_name(name), wrong, expected))
    return findings, unknown


def _check_counts(subject: VerifiedDataset, file: DatasetFile, reader: str, once: FolderIndex) -> None:
    """Find what is wrong with a reader's list of the folder's shards, as far as it is about this dataset."""
    findings, folder = subject.findings, subject.folder
    below = folder_of(once.info)
    if below and not is_url(folder) and below not in list_folders(folder):
        return  # not through a link to a folder
    counts = once.counts(exports.read_index_list(join(folder, once.info)))
    shards = {shard.name: shard.samples for shard in file.shards if shard.samples}
    if not counts.keys() & shards.keys():
        return
    for first in file.appends:
        later = [shard.name for shard in file.shards[first:]]
        if not counts.keys() & {*later}:
            findings.unchecked.append(f"{reader}'s index of the folder: it covers the first {first:,} shards only")
            shards = {name: samples for name, samples in shards.items() if name not in later}
            break
    for name, samples in shards.items():
        if counts.get(name) != samples:
            found = f"{counts[name]:,} samples in {name}" if name in counts else f"no shard {name}"
            findings.add(-1, Finding(EXPORT_STALE, once.info, found, f"{samples:,} samples"))
            return


def _check_readme(subject: VerifiedDataset, file: DatasetFile, names: set[str]) -> Iterator[Finding]:
    """Yield what is wrong with a `README.md` of ours that names shards of this dataset."""
    data = exports.read_index_list(join(subject.folder, huggingface.README_FILE))
    if not huggingface.is_own_readme(data):
        return
    there, shards = {*map(to_output_name, names)}, {shard.name for shard in file.shards}
    named = huggingface.readme_shards(data, there | shards)
    if named & shards and (lacking := sorted(shards - named)):
        yield Finding(
            EXPORT_STALE, huggingface.README_FILE, f"nothing that names {lacking[0]}", "all shards of the dataset"
        )
    if named & shards and (gone := sorted(named - there - shards)):
        yield Finding(EXPORT_STALE, huggingface.README_FILE, f"a name of no shard: {gone[0]}", "names of shards")
