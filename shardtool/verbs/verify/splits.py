"""Verify several datasets, and find leaks: samples that are in two splits of the same dataset.

Datasets are splits if their dataset files record the same run, or if their names differ only in a word such as `train`
or `val`. One run writes each key to one split, so a key in two splits is a leak. Separate runs may use the same key for
different samples, so a common key is only a leak if both samples have the same content.
"""

from __future__ import annotations

import os
import re
from itertools import combinations, starmap
from typing import TYPE_CHECKING, Any

from shardtool.errors import CorruptShard, redact_secrets
from shardtool.names import SPLIT_NAMES, to_output_name
from shardtool.verbs.verify.dataset_checks import sample_at
from shardtool.verbs.verify.examine import DigestTask, digest_samples
from shardtool.verbs.verify.findings import MAX_LISTED_PER_FILE, Finding, Findings, Report, finding_from_error
from shardtool.verbs.verify.verified_dataset import VerifiedDataset, build_report, combine_reports, read_dataset_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.dataset.scan import ShardScan
    from shardtool.dataset.stored import StoredDataset
    from shardtool.execute.pool import Pool
    from shardtool.request.dataset_options import VerifyOptions


_NAME_PART = re.compile(r"[A-Za-z]+|[0-9]+")


def verify_several(
    datasets: Sequence[Any], options: VerifyOptions, verify: Callable[..., VerifiedDataset], pool: Pool
) -> Report:
    """Verify several datasets, even if some cannot be opened, and find leaks between splits."""
    opened = [_open_or_error(dataset) for dataset in datasets]
    splits = _find_splits(opened)
    split_indexes = {index for pair in splits for index in pair}
    content_indexes = {index for pair, is_same_run in splits.items() if not is_same_run for index in pair}
    verified: dict[int, VerifiedDataset] = {}
    reports: dict[int, Report] = {}
    for index, dataset in enumerate(datasets):
        if isinstance(error := opened[index], CorruptShard):
            reports[index] = _unreadable_report(dataset, error)
        elif index in split_indexes:
            verified[index] = verify(dataset, contents=index in content_indexes)
        else:
            reports[index] = build_report(verify(dataset), options)
    for (first, second), is_same_run in splits.items():
        if first in verified and second in verified:
            _find_leaks(verified[first], verified[second], None if is_same_run else pool)
    reports |= {index: build_report(subject, options) for index, subject in verified.items()}
    return combine_reports([reports[index] for index in range(len(datasets))])


def _open_or_error(given: Any) -> StoredDataset | CorruptShard:
    try:
        return read_dataset_file(given)[0]
    except CorruptShard as error:
        return error


def _find_splits(opened: Sequence[StoredDataset | CorruptShard]) -> dict[tuple[int, int], bool]:
    """Return pairs of splits, and whether one run wrote both."""
    pairs = {}
    for (index, first), (other_index, second) in combinations(enumerate(opened), 2):
        if isinstance(first, CorruptShard) or isinstance(second, CorruptShard):
            continue
        ours, theirs = first.file, second.file
        is_same_run = ours is not None and theirs is not None and ours.run.is_sibling_split_of(theirs.run)
        names = [dataset.dataset_file or dataset.paths[0] for dataset in (first, second)]
        if is_same_run or (names[0] != names[1] and _name_without_split(names[0]) == _name_without_split(names[1])):
            pairs[index, other_index] = is_same_run
    return pairs


def _name_without_split(path: str) -> str:
    return _NAME_PART.sub(lambda word: "" if word[0].isdigit() or word[0].lower() in SPLIT_NAMES else word[0], path)


def _unreadable_report(given: Any, error: CorruptShard) -> Report:
    where = redact_secrets(to_output_name(os.fspath(given) if isinstance(given, (str, os.PathLike)) else error.where))
    finding = finding_from_error("dataset-file-damaged", os.path.basename(where), error)
    return Report(where, (finding,), {finding.code: 1}, (), ("everything else",), 0, 0, 0, readable=False)


def _find_leaks(first: VerifiedDataset, second: VerifiedDataset, pool: Pool | None) -> None:
    # If `pool` is None, every shared key is a leak. Otherwise, workers compare the content.
    import numpy as np

    if not (first.examined and second.examined):
        return
    findings, other_name = Findings(), redact_secrets(to_output_name(first.dataset.where))
    check = f"leaks from {other_name}"
    if first.is_partial or second.is_partial:
        second.unresolved = (*second.unresolved, f"{check}: not all shards were read")
    else:
        second.findings.checked.append(check)
    first_hashes, second_hashes = first.hashes(), second.hashes()
    _, rows, other_rows = np.intersect1d(first_hashes["a"], second_hashes["a"], return_indices=True)
    same = first_hashes["b"][rows] == second_hashes["b"][other_rows]
    if pool is not None:
        contents = (b"".join(shard.content_ids for _, shard in split.examined) for split in (first, second))
        first_ids, second_ids = (np.frombuffer(data, np.uint64) for data in contents)
        same &= (first_ids[rows] == second_ids[other_rows]) & (first_ids[rows] != 0)
        candidates = np.flatnonzero(same)
        digests = _content_digests(first, rows[candidates], pool)
        other_digests = _content_digests(second, other_rows[candidates], pool)
        same[candidates] = [one == other and bool(one) for one, other in zip(digests, other_digests, strict=True)]
    pairs = np.stack((rows, other_rows), axis=1)[same]
    pairs = pairs[np.argsort(pairs[:, 1])]
    first_scans: dict[int, ShardScan] = {}
    second_scans: dict[int, ShardScan] = {}

    def leak(first_index: int, second_index: int) -> Finding:
        first_shard, _ = sample_at(first, first_scans, first_index)
        second_shard, key = sample_at(second, second_scans, second_index)
        found = f"also in {other_name}, shard {first.cases[first_shard].name}"
        return Finding("split-leak", second.cases[second_shard].name, found, key=key)

    after_all_shards = len(second.cases)
    findings.add_first("split-leak", after_all_shards, len(pairs), starmap(leak, pairs[:MAX_LISTED_PER_FILE].tolist()))
    second.findings.listed += findings.listed
    second.findings.counts.update(findings.counts)


def _content_digests(split: VerifiedDataset, indexes: NDArray[np.int64], pool: Pool) -> list[bytes]:
    import numpy as np

    ends, labels = np.array([0, *split.ends()]), split.labels()
    positions = np.searchsorted(ends, indexes, "right") - 1
    items_by_task, tasks = [], []
    for position in np.unique(positions):
        items = np.flatnonzero(positions == position)
        items_by_task.append(items.tolist())
        shard_number, _ = split.examined[position]
        tasks.append(DigestTask(split.cases[shard_number].shard, labels, (indexes[items] - ends[position]).tolist()))
    digests = [b""] * len(indexes)
    for task_number, task_digests in pool.map(digest_samples, tasks):
        for index, digest in zip(items_by_task[task_number], task_digests, strict=True):
            digests[index] = digest
    return digests
