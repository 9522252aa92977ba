"""`verify --for`: what a reader would get wrong of a dataset as it lies there.

Each verdict was tried with the reader itself (tests/clients/test_targets.py). Of DALI it depends on its index: with one
beside each shard it looks at no name; without, it finds the fields by the members' names.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.dataset.shard_file import Survey, SurveyTask, survey, walked_text
from shardtool.errors import AccessRefused, ShardError, StoreFailed, listing, printable
from shardtool.interop import indexes
from shardtool.pattern import is_shard_name
from shardtool.storage.places import base_name, folder_of, folders_in, is_file, is_url, join, names_in, read_head
from shardtool.values import counted, output_text
from shardtool.verbs.verify.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.execute.pool import Pool
    from shardtool.interop.indexes import FolderIndex
    from shardtool.verbs.verify.checks import Subject


_ELSEWHERE = ("space-in-key", "meta-field", "text-label", "missing-field")  # notes only, or see `_fields`
_WITHOUT_INDEX = ("dot-in-key", "pax-name")  # what DALI gets wrong where it has none
_PLAIN_ONLY = ("wids", "dali", "energon")  # read no compressed shards
_FIRST = 5  # samples that `load_dataset` looks at


def check_targets(subject: Subject, shards: Sequence[Survey], targets: Sequence[str]) -> None:
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
    refusing = [target for target in targets if packed and target in _PLAIN_ONLY]
    if refusing:
        found = Finding("target-format", ", ".join(refusing), f"compressed shards: {listing(packed, 3)}", "plain ones")
        findings.add(last, found)
    findings.add(last, *_names(subject, shards, targets), *_shard_names(subject, targets))
    if "huggingface" in targets:
        findings.add(last, *_fields(shards))
        _check_folder(subject)


def _names(subject: Subject, shards: Sequence[Survey], targets: Sequence[str]) -> Iterator[Finding]:
    """Yield kinds of keys and fields that a reader gets wrong."""
    from shardtool.dataset.shard_index import walked_index
    from shardtool.interop.readers import READERS, Misreadings

    dali = indexes.EXPORTS["dali-webdataset"]
    shards_there = subject.dataset.shards
    indexed = all(is_file(join(folder_of(one.path), indexes.index_name(one.name, dali))) for one in shards_there)
    found = Misreadings()
    for shard in shards:
        found.add_shard(walked_index(shard))
    for one in found.problems():
        spared = ("dali",) if one.code in _WITHOUT_INDEX and indexed else ()
        getting_wrong = () if one.code in _ELSEWHERE else READERS[one.code]
        if readers := [target for target in targets if target in getting_wrong and target not in spared]:
            what = f"{one.code}: {counted(one.count, one.what)}, such as '{one.example}'"
            yield Finding("misread", ", ".join(readers), what, one.readers)


def _shard_names(subject: Subject, targets: Sequence[str]) -> Iterator[Finding]:
    from shardtool.interop.readers import unopenable

    for target in targets:
        bad = [case.name for case in subject.cases if target in unopenable(case.name)]
        if bad:
            yield Finding("target-name", target, listing(bad, 3), f"{target} {unopenable(bad[0])[target]}")


def _fields(shards: Sequence[Survey]) -> Iterator[Finding]:
    """Yield what `load_dataset` makes of samples that lack fields: it takes the first ones' for those of all."""
    reader, known = "huggingface", frozenset[bytes]()
    for one in shards:
        samples = [frozenset(map(one.names.__getitem__, codes)) for codes in one.fields()]
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


def _named(fields: frozenset[bytes]) -> str:
    return f"the field {listing(sorted(printable(walked_text(name)) for name in fields), 3)}"


def _check_folder(subject: Subject) -> None:
    """Find what `load_dataset(folder)` takes for the data, if that is not the shards."""
    names, folder = names_in(subject.folder), subject.folder
    if indexes.README in names:
        data = indexes.read_list(join(folder, indexes.README))
        if indexes.is_ours(data):
            return
        if b"data_files" in data:
            subject.findings.unchecked.append(f"{indexes.README}: whether the data_files in it are the shards")
            return
    if wrong := indexes.misreading(map(output_text, names)):
        found = f"load_dataset(folder) {wrong}"
        subject.findings.add(len(subject.cases), Finding("target-folder", "huggingface", found, "the shards"))


# The index files of other tools that lie beside shards, held against the shards that they lead into.
#
# They are no part of a dataset, and no checksum covers them; but a reader that is given a stale one returns wrong bytes
# without an error. A worker compares each with what a walk over its shard finds. What has the name of an index and not
# its form is reported as unchecked: it may be anything.


CODE = "export-stale"


def check_beside(subject: Subject, pool: Pool) -> None:
    """Find index files that lead into other bytes than those of their shards, of the shards that were read."""
    findings, names = subject.findings, set(names_in(subject.folder))
    beside = names - {base_name(subject.dataset.dataset_file or "")}
    tasks: dict[int, tuple[SurveyTask, Sequence[str]]] = {}
    for number, case in enumerate(subject.cases):
        name = case.shard.file_name
        files = [*indexes.names_beside(name, beside)]
        if files and case.survey is not None and is_shard_name(name):
            tasks[number] = SurveyTask(case.shard.path, dots=case.shard.dots), files
    numbers = [*tasks]
    for place, (found, unknown) in pool.map(compare_beside, iter(tasks.values())):
        findings.add(numbers[place], *found)
        findings.unchecked += [f"{output_text(name)}: in no form of an index that is known" for name in unknown]
    if subject.file is not None and subject.is_all:  # what tells of all shards was not named with some of them
        for form, once in indexes.ONCE.items():
            _check_counts(subject, subject.file, indexes.EXPORTS[form].reader, once)
        findings.add(-1, *_of_readme(subject, subject.file, names))


def compare_beside(task: tuple[SurveyTask, Sequence[str]]) -> tuple[list[Finding], list[str]]:
    """Compare files beside a shard that may be its indexes with what lies in it.

    Returns:
        Findings, and the names of files in no known form.
    """
    (shard_task, files), forms = task, dict[str, str]()
    folder, shard_name = folder_of(shard_task.path), output_text(base_name(shard_task.path))
    for name in files:
        with suppress(OSError, AccessRefused):  # the latter is said of what is not there, too, where we may not list
            if form := indexes.form_of(name, *read_head(join(folder, name), indexes.HEAD_SIZE)):
                forms[name] = form
    unknown = [name for name in files if name not in forms and not name.endswith(".json")]
    if not forms:
        return [], unknown
    from shardtool.dataset.shard_index import walked_index
    from shardtool.publish.foreign_indexes import read_index

    try:
        found = survey(shard_task)
        if found.error is not None:
            raise found.error
        index = walked_index(found)
        wanted = indexes.DigestTask.of(shard_task.path, found.size, index)
        hashed = any(indexes.EXPORTS[form].hashed for form in forms.values())
        shard = indexes.IndexedShard(index, indexes.digest(wanted, lambda _, __: None) if hashed else None)
    except StoreFailed:
        raise
    except ShardError:
        return [], unknown  # a damaged shard, which other checks report
    findings = []
    for name, form in forms.items():
        if wrong := read_index(join(folder, name), form, shard)[1]:
            expected = f"an index of {shard_name}, for {indexes.EXPORTS[form].reader}"
            findings.append(Finding(CODE, output_text(name), wrong, expected))
    return findings, unknown


def _check_counts(subject: Subject, file: DatasetFile, reader: str, once: FolderIndex) -> None:
    """Find what is wrong with a reader's list of the folder's shards, as far as it is about this dataset."""
    findings, folder = subject.findings, subject.folder
    below = folder_of(once.info)
    if below and not is_url(folder) and below not in folders_in(folder):
        return  # not through a link to a folder
    counts = once.counts(indexes.read_list(join(folder, once.info)))
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
            findings.add(-1, Finding(CODE, once.info, found, f"{samples:,} samples"))
            return


def _of_readme(subject: Subject, file: DatasetFile, names: set[str]) -> Iterator[Finding]:
    """Yield what is wrong with a `README.md` of ours that names shards of this dataset."""
    data = indexes.read_list(join(subject.folder, indexes.README))
    if not indexes.is_ours(data):
        return
    there, shards = {*map(output_text, names)}, {shard.name for shard in file.shards}
    named = indexes.listed(data, there | shards)
    if named & shards and (lacking := sorted(shards - named)):
        yield Finding(CODE, indexes.README, f"nothing that names {lacking[0]}", "all shards of the dataset")
    if named & shards and (gone := sorted(named - there - shards)):
        yield Finding(CODE, indexes.README, f"a name of no shard: {gone[0]}", "names of shards")
