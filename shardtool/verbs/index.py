"""`index`: sidecars and dataset file for shards that any tool made. The library twin of `shardtool index`.

Each shard is walked by a worker. A sidecar that says just what the walk found stays, with the checksums and the
metadata that only it knows; one that is missing is written. What is there and was read and found wrong is replaced
only where the user says so, and what is lost by that is told; what cannot be read stays. Shards are never touched.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from shardtool import __version__
from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, feature_spec, read_dataset, shard_names
from shardtool.dataset.find import COMPRESSED, find_dataset, read_small, shard_format
from shardtool.dataset.unfinished import check_finished
from shardtool.dataset.walk import SurveyTask, survey, walked_text
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, ShardError, listing, printable
from shardtool.execute.local import LocalPool, cores
from shardtool.fingerprint import crc32c, show_fingerprint
from shardtool.pattern import DATASET_SUFFIX, format_of, parse_pattern, sidecar_name
from shardtool.request.observer import Observer
from shardtool.request.options import IndexOptions
from shardtool.storage.staging import open_folder
from shardtool.values import counted, output_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.dataset.find import Found
    from shardtool.dataset.sidecar import ShardFact
    from shardtool.dataset.walk import Survey
    from shardtool.values import Dots

_ONLY_A_PLAN = "how the dataset was made, what was left out and the names of classes"
_NULL = "null"  # the type of a column without a value: it goes with any


@dataclass(frozen=True, slots=True)
class IndexResult:
    """The index of a dataset.

    Attributes:
        dataset_file: Its path.
        shards: How many.
        kept: How many of their sidecars were right already.
        samples: In all shards.
        notes: What the user was told.
    """

    dataset_file: str
    shards: int
    kept: int
    samples: int
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the result as data, the way `--json` prints it."""
        return asdict(self) | {"notes": list(self.notes)}


def index(
    dataset: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    options: IndexOptions | None = None,
    *,
    observer: Observer | None = None,
) -> IndexResult:
    """Write the sidecars and the dataset file of existing shards.

    Args:
        dataset: A dataset file, a shard pattern, a glob, a folder, or shards.
        options: See `IndexOptions`.
        observer: Is told of progress, and of what the user should know.

    Raises:
        InvalidRequest: There are no such shards, or they are compressed.
        CorruptShard: A shard is damaged.
        OutputExists: Another run is writing here, other shards own these names, or there is a sidecar or dataset file
            that is wrong, which nobody asked to replace.
        OutputFailed: The output cannot be written.
    """
    options = options or IndexOptions()
    with LocalPool(options.workers or cores(), options.start_method) as pool:
        job = _Job(find_dataset(dataset), options, observer or Observer())
        job.folder.ready()
        with job.folder.lock(job.base):
            for number, found in pool.map(survey, job.tasks()):
                job.add(number, found)
            pool.close()
            return job.finish()


class _Job:
    """A request that makes sense so far."""

    def __init__(self, found: Found, options: IndexOptions, observer: Observer) -> None:
        self.found, self.options, self.observer = found, options, observer
        self.format = _format_of(found)
        self.sizes = [_size_of(path) for path in found.shards]
        self.names = [os.path.basename(path) for path in found.shards]
        if twice := [name for name, count in Counter(map(sidecar_name, self.names)).items() if count > 1]:
            raise InvalidRequest("DATASET", f"shards that want the same sidecar: {listing(twice)}")
        self.pattern = parse_pattern(self.names)
        self.folder = open_folder(found.folder if options.output is None else options.output)
        self.shards_folder = _below(self.folder.path, found.folders())
        name = os.path.basename(found.dataset_file) if found.dataset_file else self.pattern.dataset_file
        self.dataset_file, self.base = name, name.removesuffix(DATASET_SUFFIX)
        self._check_rivals()
        self.old = self._old()
        if self.old is None:
            check_finished(found.folder, found.shards)
        self.notes: list[str] = []
        self.wrong: list[str] = []
        self.lost: set[str] = set()
        self.kept = self.field_bytes = self.digest = 0
        self.entries: dict[int, ShardEntry] = {}
        self.fields: Counter[str] = Counter()
        self.kinds: dict[int, dict[str, str]] = {}
        self.lists: set[str] = set()
        self.schemas: dict[int, dict[str, str]] = {}
        self.digests: list[int | None] = []

    def _check_rivals(self) -> None:
        """See that no other shard in the folder has a sidecar of these names."""
        sidecars, own = {*map(sidecar_name, self.names)}, set() if self.shards_folder else {*self.names}
        others = [name for name in self.folder.names() if format_of(name) and sidecar_name(name) in sidecars]
        if rivals := sorted(name for name in others if name not in own):
            raise OutputExists(
                self.folder.path or ".", f"other shards whose sidecars have these names: {listing(rivals, 3)}",
                expected="none that would share their indexes", remedy="Move one of the datasets away.",
            )  # fmt: skip

    def _old(self) -> DatasetFile | None:
        """Return what the dataset file said so far; None where there is none, or it may be replaced.

        Raises:
            OutputExists: It cannot be read, says something else, or is none of ours.
        """
        path = self.folder.full_path(self.dataset_file)
        given = path if self.found.dataset_file is None else self.found.dataset_file
        data = _read_there(path)
        self.own = False
        if data is None:
            return find_own(given)  # where --output is another folder
        if shard_names(data) is None:
            if path != self.found.dataset_file:
                remedy = "Move it away, or choose another --output."
                raise OutputExists(path, "a file that is no dataset file of shardtool", remedy=remedy)
            self._replace("an index of wids", "what only it says of the shards")
            return None
        try:
            old = read_dataset(data, path)
        except CorruptShard as error:
            self._replace(error.found, _ONLY_A_PLAN)
            return None
        self._check_listed(old, path)
        self.own = True
        return old

    def _replace(self, found: str, lost: str) -> None:
        """See that the user lets the dataset file, which was read and found wrong, be replaced."""
        if not self.options.overwrite:
            raise OutputExists(
                self.folder.full_path(self.dataset_file), found, expected="the dataset file of these shards",
                remedy=f"--overwrite replaces it; {lost} is lost then.",
            )  # fmt: skip

    def _check_listed(self, old: DatasetFile, path: str) -> None:
        """See that a dataset file that lists other shards does so wrongly."""
        listed = {one.name for one in old.shards}
        others = sorted(listed - {*map(output_text, self.names)})
        folder = os.path.join(self.folder.path, old.shards_folder)
        if there := [name for name in others if os.path.lexists(os.path.join(folder, name))]:
            raise OutputExists(
                path, f"it lists {counted(len(there), 'shard')} that are there and were not given: {listing(there, 3)}",
                remedy="Give all shards of the dataset, or choose another --output.",
            )  # fmt: skip
        if listed != {*map(output_text, self.names)} or old.shards_folder != self.shards_folder:
            gone = f", {counted(len(others), 'shard')} of them not there: {listing(others, 3)}" if others else ""
            found = f"it lists {counted(len(listed), 'shard')}{gone}; {len(self.names):,} were given"
            self._replace(found, _ONLY_A_PLAN)

    def tasks(self) -> list[SurveyTask]:
        """Return what the workers do."""
        told = self.old.made.get("options", {}) if self.old else {}
        dots: Dots = self.options.dots or ("last" if isinstance(told, dict) and told.get("dots") == "last" else "first")
        self.observer.start(0, sum(self.sizes), len(self.sizes))
        return [SurveyTask(path, self.options.checksum, dots) for path in self.found.shards]

    def add(self, number: int, found: Survey) -> None:
        """Write a shard's sidecar, unless the one that is there is right, or wrong and to be kept."""
        from shardtool.dataset.opened import table_of
        from shardtool.dataset.sidecar import ShardFact, encode_table, tally_of, types_of

        if found.error is not None:
            raise found.error
        name = self.names[number]
        index_name, shown = sidecar_name(name), output_text(name)
        table, fact, data = table_of(found), ShardFact(shown, found.size, found.crc, ""), None
        there = _read_there(self.folder.full_path(index_name))
        if there is not None:
            right = self._right(found, index_name, there, table)
            if right is not None:
                table, fact, data = right
            elif not self.options.overwrite:
                return  # `finish` refuses, once all that is wrong is known
        kept = data is not None
        if data is None:
            data = encode_table(table, fact)
            self._publish(index_name, data)
        self.kept += kept
        tally = tally_of(table)
        self.entries[number] = ShardEntry(
            shown, tally.samples, fact.size, fact.crc, output_text(index_name), len(data), crc32c(data),
            tally.first_key, tally.last_key,
        )  # fmt: skip
        self.fields.update(tally.fields)
        self.kinds[number] = {walked_text(one): kind for one, kind in zip(found.names, found.kinds, strict=True)}
        self.lists |= {walked_text(found.names[at]) for at, one in found.unlike.items() if one.kind == found.kinds[at]}
        self.field_bytes += tally.field_bytes
        self.schemas[number] = types_of(table.schema)
        self.digests.append(found.digest)
        if found.odd:
            one = found.odd[0]
            what = f"{counted(len(found.odd), 'member')} no part of a sample, such as at {one.offset:,} {one.what}"
            self._note(f"{name}: {what}")
        self.observer.advance(tally.samples, found.size, 1)
        self.observer.log(f"{name}: {'kept' if kept else 'written'}, {tally.samples:,} samples")

    def _right(self, found: Survey, name: str, data: bytes, walked: Any) -> tuple[Any, ShardFact, bytes | None] | None:
        """Return the sidecar that is there, if it says what the walk found; None where it is wrong.

        Returns:
            Its table and fact, and its bytes: None where it gets checksums that it lacked.
        """
        from shardtool.dataset.sidecar_read import read_sidecar

        where = self.folder.full_path(name)
        try:
            known = read_sidecar(data, where, found.size)
            fact, old = known.fact, known.plain_table()
        except CorruptShard:
            self._wrong(name, "damaged", ())
            return None
        if (fact.name, fact.size) != (output_text(os.path.basename(found.path)), found.size) or not _same(old, walked):
            self._wrong(name, "of another shard", old.column_names)
            return None
        if not self.options.checksum:
            return old, fact, data
        if fact.crc is not None and fact.crc != found.crc:
            raise CorruptShard(
                found.path, f"the checksum {found.crc:08x}", expected=f"{fact.crc:08x}, as its sidecar says",
                remedy="`shardtool verify` tells what is damaged.",
            )  # fmt: skip
        new = _with_checksums(old, walked)
        if new is None:
            self._wrong(name, "checksums of other payloads", old.column_names)
            return None
        if fact.crc is not None and not new[1]:
            return old, fact, data
        return new[0], replace(fact, crc=found.crc), None

    def _wrong(self, name: str, found: str, columns: Sequence[str]) -> None:
        """Take a file that was read and found wrong."""
        from shardtool.dataset.sidecar import SCHEMA

        self.wrong.append(f"{name} ({found})")
        self.lost |= {*columns} - {*SCHEMA.names}
        if self.options.overwrite:
            self._note(f"{name}: {found}, so what only it knew is lost: checksums and metadata")

    def _refuse_wrong(self) -> None:
        """See that what is wrong may be replaced.

        Raises:
            OutputExists: Nobody asked for that.
        """
        if not self.wrong or self.options.overwrite:
            return
        columns = f" and the columns {listing(sorted(self.lost))}" if self.lost else ", metadata"
        raise OutputExists(
            self.folder.path or ".", f"not what the shards hold: {listing(self.wrong)}", expected="right ones, or none",
            remedy="--overwrite makes them again from the shards; what only they know is lost then: checksums"
            f"{columns}, how the dataset was made. `shardtool verify` tells whether the shards are right.",
        )  # fmt: skip

    def _publish(self, name: str, data: bytes) -> None:
        output = self.folder.stage(name)
        try:
            output.write(data)
            self.folder.publish(output.finish())
        except BaseException:
            output.abandon()
            raise

    def finish(self) -> IndexResult:
        """Write the dataset file, unless the one that is there is right."""
        old, same = self.old, False
        if old is not None and len(self.entries) == len(self.names):
            same = all(map(_goes_with, old.shards, (self.entries[at] for at in range(len(old.shards)))))
        if self.own and not same and not self.wrong:
            self.wrong.append(f"{self.dataset_file} (of other shards)")
        self._refuse_wrong()
        shards = tuple(self.entries[number] for number in range(len(self.names)))
        if same and old is not None:  # what it says of the shards stays a claim, which `verify` holds them to
            shards = tuple(
                one if one.crc is not None else replace(one, crc=before.crc)
                for one, before in zip(shards, old.shards, strict=True)
            )
            if self.own and old.shards == shards:
                return self._result(shards)
        told = {"options": {"dots": self.options.dots}} if self.options.dots == "last" else {}
        made: dict[str, Any] = {"verb": "index", **told, "tool": f"shardtool {__version__}"}
        if not same:
            self._note("how the dataset was made, what was skipped and class names are not known: only a plan knows")
        samples = sum(shard.samples for shard in shards)
        complete = all(digest is not None for digest in self.digests)
        total = sum(digest or 0 for digest in self.digests)
        file = DatasetFile(
            name=output_text(self.base),
            pattern=output_text(self.pattern.text),
            format=self.format,
            shards=shards,
            fields=dict(sorted(self.fields.items())),
            field_bytes=self.field_bytes,
            skipped=0,
            schema=self._schema(),
            classes={},
            features=feature_spec(self.fields, self._kinds(), samples, self.lists) if self.format == "tfrecord" else {},
            made=made,
            fingerprint=show_fingerprint(total) if complete else "",
            shards_folder=self.shards_folder,
        )
        if same and old is not None:  # the shards are the ones that it told of
            file = replace(
                file, skipped=old.skipped, skipped_crc=old.skipped_crc, classes=old.classes, made=old.made,
                fingerprint=old.fingerprint, appends=old.appends,
                features=old.features, numbers=old.numbers, fields=old.fields, pattern=old.pattern, name=old.name,
            )  # fmt: skip
        if not file.fingerprint:
            self._note("no content fingerprint: --checksum reads the payloads, too")
        self._publish(self.dataset_file, file.encode())
        return self._result(shards)

    def _schema(self) -> dict[str, str]:
        """Return the columns of all sidecars in the order of the shards, of each the first type that holds values."""
        found: dict[str, str] = {}
        others: dict[str, str] = {}
        for number, schema in sorted(self.schemas.items()):
            for column, kind in schema.items():
                before = found.setdefault(column, kind)
                if before == _NULL:
                    found[column] = kind
                elif kind not in (before, _NULL) and not column.startswith("__"):
                    others.setdefault(
                        column, f"{column!r} is {before}, but {kind} in {sidecar_name(self.names[number])}"
                    )
        if others:
            self._note(f"columns of other types in other sidecars: {listing([*others.values()])}")
        return found

    def _kinds(self) -> dict[str, str]:
        """Return what features are: those of the first shard that has one."""
        return {name: kind for _, kinds in sorted(self.kinds.items(), reverse=True) for name, kind in kinds.items()}

    def _result(self, shards: tuple[ShardEntry, ...]) -> IndexResult:
        path = self.folder.full_path(self.dataset_file)
        return IndexResult(path, len(shards), self.kept, sum(shard.samples for shard in shards), tuple(self.notes))

    def _note(self, text: str) -> None:
        self.notes.append(printable(text))
        self.observer.note(self.notes[-1])


def _format_of(found: Found) -> str:
    """Return the format of the shards that are to be indexed.

    Raises:
        InvalidRequest: There are none, they are compressed, or of two formats.
    """
    if packed := [path for path in found.shards if path.endswith(COMPRESSED)]:
        raise InvalidRequest(
            packed[0], "a compressed shard", expected="a plain one",
            remedy="Decompress it: nothing can be read at an offset of a compressed file.",
        )  # fmt: skip
    if not found.shards:
        raise InvalidRequest(found.dataset_file or "DATASET", "no shards", expected="one at least")
    formats = sorted({shard_format(path) for path in found.shards})
    if len(formats) > 1:
        raise InvalidRequest("DATASET", "tar and TFRecord shards", expected="one format", remedy="Index each alone.")
    return formats[0]


def _size_of(path: str) -> int:
    """Return the bytes of a shard.

    Raises:
        CorruptShard: It is not there, or no plain file.
    """
    remedy = "Get it again, or run the command that made it again with --resume."
    try:
        fact = os.lstat(path)
    except OSError as error:
        raise CorruptShard(path, (error.strerror or str(error)).lower(), expected="a shard", remedy=remedy) from None
    if not stat.S_ISREG(fact.st_mode):
        raise CorruptShard(path, "no plain file", expected="a shard", remedy=remedy)
    return fact.st_size


def _below(folder: str, shards: list[str]) -> str:
    """Return the way from the dataset file's folder down to that of the shards; empty: it is the same.

    Raises:
        InvalidRequest: The shards lie in several folders, or not below: a dataset file leads nowhere else.
    """
    if len(shards) > 1:
        found = f"shards in {len(shards)} folders: {listing(shards, 3)}"
        raise InvalidRequest("DATASET", found, expected="one folder", remedy="Index each alone.")
    path = os.path.relpath(os.path.realpath(shards[0] or "."), os.path.realpath(folder or "."))
    if path == os.curdir:
        return ""
    if path.split(os.sep)[0] == os.pardir:
        raise InvalidRequest(
            "--output", f"{folder or '.'}, which does not hold the shards", expected="their folder, or one above it",
            remedy="A dataset file leads to no other place. --export alone, with a dataset file, writes anywhere.",
        )  # fmt: skip
    if printable(os.fsencode(path)) != path or ":" in path:
        raise InvalidRequest(path, "a folder that a dataset file cannot name", expected="a name that can be printed")
    return path


def _read_there(path: str) -> bytes | None:
    """Return a small file that may have to be replaced; None where there is none.

    Raises:
        OutputExists: It cannot be read: whether it is right nobody knows.
    """
    try:
        return read_small(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not os.path.islink(path):
            return None
        found = f"cannot be read: {(error.strerror or str(error)).lower()}"
        remedy = "Make it readable, or move it away."
        raise OutputExists(path, found, expected="a file, or none", remedy=remedy) from None


def _with_checksums(old: Any, walked: Any) -> tuple[Any, bool] | None:
    """Return a sidecar's table with the checksums of the payloads that a walk has read, and whether they are new to it.

    Returns:
        None where it has others.
    """
    import pyarrow.compute as pc

    at = old.column_names.index("__fields__")
    before, now = (table.column("__fields__").combine_chunks().flatten().field("crc32c") for table in (old, walked))
    if pc.any(pc.not_equal(before, now)).as_py():  # null, which nobody has read, is neither
        return None
    return old.set_column(at, walked.schema.field("__fields__"), walked.column("__fields__")).replace_schema_metadata(
        None
    ), bool(before.null_count)


def find_own(path: str) -> DatasetFile | None:
    """Return what a dataset file of ours says, damaged or not ours: None."""
    try:
        return read_dataset(read_small(path), path)
    except (OSError, ShardError):
        return None


def _same(old: Any, new: Any) -> bool:
    """Tell whether two sidecars' tables speak of the same samples and fields at the same places."""
    from shardtool.dataset.opened import places_of

    return bool(places_of(old) == places_of(new))


def _goes_with(before: ShardEntry, now: ShardEntry) -> bool:
    """Tell whether what a dataset file says of a shard, without its sidecar, is what was found."""
    known = before.crc is None or now.crc is None or before.crc == now.crc
    return known and _shape(before) == _shape(now)


def _shape(shard: ShardEntry) -> tuple[str, int, int, str, str]:
    """Return what is known of a shard without reading its payloads."""
    return shard.name, shard.size, shard.samples, shard.first_key, shard.last_key
