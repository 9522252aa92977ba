"""`verify --repair`: rebuild what can be rebuilt without guessing.

- A missing, damaged or stale sidecar is rebuilt from its shard, if the dataset file verifies the shard.
- A missing or damaged dataset file is rebuilt, if a valid sidecar verifies every shard.
- With the source, `create` runs again with the recorded options that only choose, and with what the user passes
  (`--map`,
  `--root`). The existing files are kept under other names until the result is exactly what the dataset file lists,
  and
  are restored if it is not. For splits, `reshard`, a `--join` table, and after an append, the user learns what to
  run.

In a folder everything is staged, then published. In a store, sidecars are replaced one by one, and the dataset file
last;
shards are not rebuilt there. Afterwards the dataset is verified again.
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import DatasetFile, read_valid_dataset
from shardtool.dataset.find import find_dataset
from shardtool.errors import (
    InvalidRequest,
    OutputFailed,
    ShardError,
    format_list,
    printable,
)
from shardtool.fingerprint import crc32c
from shardtool.format.tfrecord_write import encode_number
from shardtool.messages import option_text
from shardtool.pattern import DATASET_SUFFIX, parse_pattern
from shardtool.request.create_options import CreateOptions
from shardtool.request.dataset_options import IndexOptions, VerifyOptions
from shardtool.request.output_options import WorkerOptions
from shardtool.storage.paths import base_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.dataset.stored import StoredDataset
    from shardtool.storage.backup import BackupLinks
    from shardtool.storage.staging import DurableFile
    from shardtool.values import DatasetLike, OnError
    from shardtool.verbs.verify.verified_dataset import ShardCheck, VerifiedDataset


SIDECAR_CODES = frozenset(
    {"sidecar-missing", "sidecar-size", "sidecar-checksum", "sidecar-damaged", "sidecar-stale", "index-differs"}
)


_MISSING_SHARD_CODES, _CHANGED_SHARD_CODES = (
    {"shard-missing", "shard-unreadable"},
    {"shard-size", "shard-checksum", "payload-checksum"},
)


SHARD_CODES = frozenset({*_MISSING_SHARD_CODES, *_CHANGED_SHARD_CODES, "shard-damaged", "padding-not-zero"})


DATASET_FILE_CODES = frozenset({"dataset-file-missing", "dataset-file-damaged"})


DATASET_CODES = frozenset({"dataset-incomplete", "numbering-gap", "sidecar-extra", "shard-extra"})


def why_not_repeatable(file: DatasetFile) -> str:
    """Return why shards cannot be made again here, and what to do instead; empty where they can, with the source."""
    verb, which = file.made.verb, ""
    if file.appends:
        overwrite, append = option_text("if_exists", "overwrite"), option_text("if_exists", "append")
        return (
            "the shards of a dataset that samples were appended to: no one command makes them again. Get the files "
            f"from a copy, or make the dataset anew: the first command with {overwrite}, then each {append}"
        )
    if file.made.removed:
        again = f"{option_text('if_exists', 'resume')} of the command that made it makes other shards of those that are left"
        return f"the shards of a dataset that samples were removed from: get the files from a copy, or {again}"
    if verb == "index":
        return "shards that another tool made: get them again"
    if verb != "create":
        which = f"made by {printable(verb)[:80]}"
    elif file.made.split:
        which = "of a split"
    elif file.made.options.get("urls"):
        which = "of the files of URLs, which may be others by now"
    elif table := file.made.options.get("join"):
        which = f"made with {option_text('join')} {printable(str(table))[:80]}"
    again = f"run the command that made them again, with {option_text('if_exists', 'resume')}"
    return which and f"shards {which}: {again}"


def files_to_rebuild(file: DatasetFile, codes: Mapping[str, Collection[str]]) -> list[str]:
    """Return the files that are to be made again, by the codes that were found of each file."""
    names = []
    for one in file.shards:
        if SHARD_CODES.intersection(codes.get(one.name, ())):
            names.append(one.name)
        elif SIDECAR_CODES.intersection(codes.get(one.sidecar, ())):
            names.append(one.sidecar)
    return names


def repeat_options(file: DatasetFile, asked: VerifyOptions) -> CreateOptions:
    """Return the options to run `create` again with: code is the user's, never what is recorded.

    Raises:
        InvalidRequest: The dataset was made with options that the user is to give, and did not.
    """
    from shardtool.verbs.verify.recorded_run import recorded_run

    run, given = recorded_run(file, asked), asked.map
    if not isinstance(run.options, CreateOptions):
        raise TypeError(run.verb)  # other verbs are not run again
    if run.map and given is None:
        found = f"samples made by {run.map}, which is never run because a file names it"
        wanted = f"{option_text('map')}, if that code is yours"
        raise InvalidRequest(option_text("source"), found, expected=wanted, remedy="Nothing was touched.")
    if given is not None and given != run.map:
        expected = f"{run.map}, as recorded" if run.map else "none, as recorded"
        raise InvalidRequest(option_text("map"), str(given), expected=expected, remedy="Nothing was touched.")
    on_error: OnError = "skip" if file.skipped else "stop"
    return replace(run.options, map=given, if_exists="resume", on_error=on_error, **asdict(asked.pick(WorkerOptions)))


def repeat_output(file: DatasetFile, found: StoredDataset, codes: Collection[str]) -> list[str] | str:
    """Return where `create` is to write: to the names that the dataset file lists, in its own folder.

    Raises:
        InvalidRequest: It would write or remove other files than those.
    """
    if extra := {"shard-extra", "sidecar-extra"}.intersection(codes):
        problem = f"files that the dataset file does not list ({format_list(sorted(extra))})"
        expected = "none, for they would be removed"
        raise InvalidRequest(option_text("repair"), problem, expected=expected, remedy="Move them away first.")
    output: list[str] | str = os.path.join(found.folder, file.pattern)
    if "{" not in file.pattern:
        output = [os.path.join(found.folder, one.name) for one in file.shards]
    base, own = parse_pattern(output).base, os.path.basename(found.dataset_file or "").removesuffix(DATASET_SUFFIX)
    if {base, file.name} != {own}:
        problem = f"a dataset file called {own}, of a dataset called {file.name}"
        remedy = "Give the dataset file its own name again."
        raise InvalidRequest(option_text("repair"), problem, expected=f"{base}, as its shards are", remedy=remedy)
    return output


_KEPT_SUFFIX = ".before-repair"


class Repair:
    """The repair of a dataset, from its findings.

    Attributes:
        done: What was mended, in words.
        left: What was not, and why.
    """

    def __init__(self, seen: VerifiedDataset, options: VerifyOptions) -> None:
        self.seen, self.options = seen, options
        self.codes = {code for code, count in seen.findings.counts.items() if count}
        self.by_file: dict[str, set[str]] = {}
        for _, one in seen.findings.listed:
            self.by_file.setdefault(one.file, set()).add(one.code)
        from shardtool.storage.folders import open_folder

        self.folder = open_folder(seen.dataset.folder)
        self.done: list[str] = []
        self.left: list[str] = []

    def run(self) -> None:
        """Mend what can be mended."""
        file, files = self.seen.file, self.codes & (SIDECAR_CODES | SHARD_CODES)
        instead = why_not_repeatable(file) if file is not None and files else ""
        if files and not self.folder.hides:
            again = (
                f"run the command that made them again, with {option_text('if_exists', 'resume')}, or copy sound ones"
            )
            instead = (
                instead or f"shards in a store: {again}; sidecars alone are made again without {option_text('source')}"
            )
        if self.options.source is not None and files and file is not None:
            if instead:
                self._leave(instead)
            else:
                self._again(file)
            return
        if self.codes & SHARD_CODES:
            lost = "only a whole dataset file says how they were made. Run that command with"
            again = f"{lost} {option_text('if_exists', 'resume')}"
            if self.options.source is None:
                again = f"they can only be made again from their source ({option_text('source')})"
            self._leave(instead or f"damaged shards: {again}")
        if self.seen.file is not None and self.codes & SIDECAR_CODES:
            self._sidecars(self.seen.file)
        elif self.codes & DATASET_FILE_CODES:
            self._dataset_file()

    def _leave(self, what: str) -> None:
        self.left.append(f"repair: {what}")

    def _base(self) -> str:
        return base_name(self.seen.dataset.dataset_file or "").removesuffix(DATASET_SUFFIX)

    def _sidecars(self, file: DatasetFile) -> None:
        """Make sidecars again from shards that are proven sound."""
        bad = [case for case in self.seen.cases if self.by_file.get(case.sidecar, set()) & SIDECAR_CODES]
        proven = [case for case in bad if case.sound and case.scan and case.entry and case.scan.crc == case.entry.crc]
        for case in bad:
            if case not in proven:
                self._leave(f"{case.sidecar}: its shard is not proven to be sound")
        if not proven:
            return
        path = self.seen.dataset.dataset_file or ""
        with self.folder.lock(self._base()):
            if read_valid_dataset(path) != file:
                raise OutputFailed(path, "changed while it was verified", remedy="Run it again.")
            entries = {one.name: one for one in file.shards}
            staged: list[DurableFile] = []
            lost: set[str] = set()
            names = [*(case.sidecar for case in proven), self._base() + DATASET_SUFFIX]
            try:
                for case in proven:
                    data, columns = self._sidecar_of(case, file)
                    lost |= {*file.schema} - {*columns}
                    staged.append(self.folder.stage_bytes(case.sidecar, data))
                    if not self.folder.hides:  # where nothing waits unseen, many would wait in memory
                        self.folder.publish(staged.pop())
                    entry = entries[case.name]
                    entries[case.name] = replace(entry, sidecar_size=len(data), sidecar_crc=crc32c(data))
                new = replace(file, shards=tuple(entries[one.name] for one in file.shards))
                staged.append(self.folder.stage_bytes(self._base() + DATASET_SUFFIX, new.encode()))
                self.folder.publish(*staged)
            finally:
                self.folder.discard_staged(names)
        self.done.append(f"{format_list([case.sidecar for case in proven])}: made again from the shard")
        if lost:
            self.done[-1] += f"; the columns {format_list(sorted(lost))} are lost there, for only the source has them"

    def _sidecar_of(self, case: ShardCheck, file: DatasetFile) -> tuple[bytes, list[str]]:
        """Return the sidecar of a shard, and its columns: of its metadata only the numbers of classes."""
        from shardtool.dataset.shard_index import scanned_index
        from shardtool.dataset.sidecar_schema import SHARD_COLUMN
        from shardtool.dataset.sidecar_write import encode_sidecar_table

        found = case.shard.scan(checksum=True)
        if found.error is not None or case.entry is None or found.crc != case.entry.crc:
            raise OutputFailed(case.shard.path, "changed while it was verified", remedy="Run it again.")
        index = _with_labels(scanned_index(found), file)
        return encode_sidecar_table(index.plain_table(), index.fact), [*index.schema.names, SHARD_COLUMN.name]

    def _dataset_file(self) -> None:
        """Make the dataset file again from shards that are what their sidecars say."""
        unsound = [case.name for case in self.seen.cases if not case.sound]
        if unsound or self.codes & (SHARD_CODES | SIDECAR_CODES | DATASET_CODES):
            what = f"{format_list(unsound, 3)} is not proven to be sound" if unsound else "other things are wrong, too"
            if "dataset-incomplete" in self.codes:
                resume = option_text("if_exists", "resume")
                what = f"shards are missing. Finish the run that made them: its own command with {resume}"
            self._leave(f"the dataset file: {what}")
            return
        from shardtool.verbs.index.index import index

        given = self.seen.dataset.dataset_file or self.seen.dataset.paths
        if {*find_dataset(given).paths} - {*self.seen.dataset.paths}:
            self._leave("the dataset file: only some of its shards were given. Name the dataset file")
            return
        try:
            overwrite = "dataset-file-damaged" in self.codes
            dots = self.seen.dataset.shards[0].dots
            options = self.options.pick(IndexOptions, checksum=True, dots=dots, overwrite=overwrite)
            made = index(given, options)
        except ShardError as error:
            self._leave(f"the dataset file: {error}")
            return
        lost = "how the dataset was made, what was left out and the names of classes are lost"
        self.done.append(f"{made.dataset_file}: made again from shards and sidecars; {lost}")

    def _again(self, file: DatasetFile) -> None:
        """Run `create` again, and keep what it gives only where that is just what the dataset file says."""
        from shardtool.verbs.create.create import create

        wrong = files_to_rebuild(file, self.by_file)
        try:
            options, output = repeat_options(file, self.options), repeat_output(file, self.seen.dataset, self.codes)
            self._check_plan(file, output, options)
            kept = self._keep(file)
        except ShardError as error:
            self._leave(str(error))
            return
        try:
            self.folder.remove(wrong)
            create(self.options.source, output, options)
            self._check_outcome(file)
        except BaseException as error:
            kept.restore_files(last=DATASET_SUFFIX)
            if not isinstance(error, ShardError):
                raise
            self._leave(f"what was there is back: {error}")
            return
        kept.discard()
        source = self.options.source
        sources = format_list([*map(str, source)]) if isinstance(source, list | tuple) else source
        self.done.append(f"{format_list(wrong)}: made again from {sources}")

    def _check_plan(self, file: DatasetFile, output: DatasetLike, options: CreateOptions) -> None:
        """Check that the source would give the shards that the dataset file lists, before anything is touched."""
        from shardtool.verbs.create.create import dry_run

        plan = dry_run(self.options.source, output, options)
        if options.make_transform() is None:
            ours = [(one.name, one.samples, one.size, one.first_key, one.last_key) for one in file.shards]
            if [(one.name, one.samples, one.size, one.first_key, one.last_key) for one in plan.shards] != ours:
                found = "other samples than the dataset was made from"
                raise InvalidRequest(option_text("source"), found, expected="those", remedy="Nothing was touched.")

    def _keep(self, file: DatasetFile) -> BackupLinks:
        """Give all files of the dataset a second name."""
        from shardtool.storage.backup import BackupLinks

        kept = BackupLinks(self.folder.path, self.folder.full_path(f".{self._base()}{_KEPT_SUFFIX}"))
        names = [name for one in file.shards for name in (one.name, one.sidecar)]
        names += [self._base() + DATASET_SUFFIX, f"{file.name}.skipped"]
        kept.keep(names)
        return kept

    def _check_outcome(self, file: DatasetFile) -> None:
        """Check that every shard is the one that the dataset file listed."""
        new = read_valid_dataset(self.seen.dataset.dataset_file or "")
        before, after = ([(one.name, one.size, one.crc) for one in it.shards] if it else [] for it in (file, new))
        if before != after:
            raise InvalidRequest(
                option_text("source"), "other content than the dataset was made from", expected="the same"
            )


def _with_labels(index: ShardIndex, file: DatasetFile) -> ShardIndex:
    """Return the index of a shard with the columns of its labels, which the checksums of their payloads tell."""
    import numpy as np
    import pyarrow as pa

    from shardtool.dataset.sidecar_schema import SIDECAR_SCHEMA
    from shardtool.entries.arrow import number_array

    columns: dict[str, pa.Array] = {}
    for name in [one for one in file.schema if one in file.classes and one in index.names]:
        texts = [b"%d" % number for number in range(len(file.classes[name]))]
        payloads = texts if file.format == "tar" else [encode_number(text, "int64") for text in texts]
        numbers = {(crc32c(payload), len(payload)): number for number, payload in enumerate(payloads)}
        rows = np.flatnonzero(index.codes == index.names.index(name))
        crcs = [] if index.crcs is None else index.crcs[rows].tolist()
        found = [numbers.get(one, -1) for one in zip(crcs, index.lengths[rows].tolist(), strict=False)]
        if len(found) == len(index) and min(found, default=0) >= 0 and file.schema[name] == "int64":
            columns[name] = number_array(np.array(found, np.int64))
    metadata = pa.Table.from_arrays([*columns.values()], names=[*columns])
    return replace(index, metadata=metadata, schema=pa.schema([*SIDECAR_SCHEMA, *metadata.schema]))
