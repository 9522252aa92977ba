"""`index`: sidecars and dataset file for shards that any tool made. The library twin of `shardtool index`.

Each shard is walked by a worker. A sidecar that says just what the walk found stays, with the checksums and the
metadata that only it knows; any other is written anew, and what is lost by that is told. Shards are never touched.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from shardtool import __version__
from shardtool.checksum import crc32c, show_fingerprint
from shardtool.dataset import DatasetFile, ShardEntry, feature_spec, read_dataset
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, ShardError, listing, printable
from shardtool.execute.local import LocalPool, StartMethod, cores
from shardtool.pattern import DATASET_SUFFIX, parse_pattern, sidecar_name
from shardtool.ranges import check_ranges
from shardtool.reading import COMPRESSED, find_dataset, read_small, shard_format
from shardtool.sample import counted, output_text
from shardtool.storage import open_folder
from shardtool.survey import SurveyTask, survey, walked_text
from shardtool.verbs.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.reading import Found
    from shardtool.sample import Dots
    from shardtool.sidecar import ShardFact
    from shardtool.survey import Survey

_NULL = "null"  # the type of a column without a value: it goes with any


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """How to index.

    Attributes:
        checksum: Read the payloads too, for their checksums and the content fingerprint.
        output: The folder for sidecars and dataset file; None: beside the shards.
        dots: Where keys end in members' names; None: as the dataset file says, or at the first dot.
        workers: Processes; None: the cores that this process may use.
        start_method: `auto`, `fork` or `spawn`.
    """

    checksum: bool = False
    output: str | None = None
    dots: Dots | None = None
    workers: int | None = None
    start_method: StartMethod = "auto"

    def __post_init__(self) -> None:
        check_ranges(self)


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
        OutputExists: Another run is writing here, or a file of another tool has the dataset file's name.
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
        if packed := [path for path in found.shards if path.endswith(COMPRESSED)]:
            raise InvalidRequest(
                packed[0], "a compressed shard", expected="a plain one",
                remedy="Decompress it: nothing can be read at an offset of a compressed file.",
            )  # fmt: skip
        if not found.shards:
            raise InvalidRequest(found.dataset_file or "DATASET", "no shards", expected="one at least")
        self.formats = sorted({shard_format(path) for path in found.shards})
        if len(self.formats) > 1:
            raise InvalidRequest(
                "DATASET", "tar and TFRecord shards", expected="one format", remedy="Index each alone."
            )
        self.names = [os.path.basename(path) for path in found.shards]
        if twice := [name for name, count in Counter(map(sidecar_name, self.names)).items() if count > 1]:
            raise InvalidRequest("DATASET", f"shards that want the same sidecar: {listing(twice)}")
        self.old = self._old()
        self.pattern = parse_pattern(self.names)
        name = os.path.basename(found.dataset_file) if found.dataset_file else self.pattern.dataset_file
        self.dataset_file, self.base = name, name.removesuffix(DATASET_SUFFIX)
        self.folder = open_folder(found.folder if options.output is None else options.output)
        self._check_name()
        self.notes: list[str] = []
        self.kept = self.field_bytes = self.digest = 0
        self.entries: dict[int, ShardEntry] = {}
        self.fields: Counter[str] = Counter()
        self.kinds: dict[int, dict[str, str]] = {}
        self.lists: set[str] = set()
        self.schemas: dict[int, dict[str, str]] = {}
        self.digests: list[int | None] = []

    def _old(self) -> DatasetFile | None:
        """Return what the dataset file said so far; None where there is none, or it is damaged."""
        if self.found.dataset_file is None:
            return None
        try:
            return read_dataset(read_small(self.found.dataset_file), self.found.dataset_file)
        except (OSError, ShardError):
            return None

    def _check_name(self) -> None:
        """See that what has the dataset file's name may be replaced."""
        path = self.folder.full_path(self.dataset_file)
        if os.path.lexists(path) and path != self.found.dataset_file and find_own(path) is None:
            raise OutputExists(
                path, "a file that is no dataset file of shardtool", remedy="Move it away, or choose another --output."
            )

    def tasks(self) -> list[SurveyTask]:
        """Return what the workers do."""
        told = self.old.made.get("options", {}) if self.old else {}
        dots: Dots = self.options.dots or ("last" if isinstance(told, dict) and told.get("dots") == "last" else "first")
        sizes = [os.path.getsize(path) for path in self.found.shards]
        self.observer.start(0, sum(sizes), len(sizes))
        return [SurveyTask(path, self.options.checksum, dots) for path in self.found.shards]

    def add(self, number: int, found: Survey) -> None:
        """Write a shard's sidecar, unless the one that is there is right."""
        from shardtool.read.opened import table_of
        from shardtool.sidecar import ShardFact, encode_table, tally_of, types_of

        if found.error is not None:
            raise found.error
        name = self.names[number]
        index_name, shown = sidecar_name(name), output_text(name)
        table, data = table_of(found), None
        known = self._known(found.path, index_name, table, found)
        if known is not None:
            table, fact, data = known
        else:
            fact = ShardFact(shown, found.size, found.crc, "")
            data = encode_table(table, fact)
            self._publish(index_name, data)
        self.kept += known is not None
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
        self.observer.log(f"{name}: {'kept' if known else 'written'}, {tally.samples:,} samples")

    def _known(self, path: str, index_name: str, table: Any, found: Survey) -> tuple[Any, ShardFact, bytes] | None:
        """Return the sidecar that is there, as table, fact and bytes, if it says what the walk found."""
        from shardtool.sidecar import read_facts, read_field_crcs, read_table

        where = os.path.join(self.folder.path, index_name)
        try:
            data = read_small(where)
            fact, old = read_facts(data, where), read_table(data, where)
            read_field_crcs(data, where)
        except FileNotFoundError:
            return None
        except (OSError, ShardError):
            self._note(f"{index_name}: damaged, so what only it knew is lost: checksums and metadata")
            return None
        if (fact.name, fact.size) != (output_text(os.path.basename(path)), found.size) or not _same(old, table):
            self._note(f"{index_name}: of another shard, so what only it knew is lost: checksums and metadata")
            return None
        if not self.options.checksum:
            return old, fact, data
        if fact.crc is not None and fact.crc != found.crc:
            raise CorruptShard(
                path, f"the checksum {found.crc:08x}", expected=f"{fact.crc:08x}, as its sidecar says",
                remedy="`shardtool verify` tells what is damaged.",
            )  # fmt: skip
        return (old, fact, data) if fact.crc is not None else None

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
        old, shards = self.old, tuple(self.entries[number] for number in range(len(self.names)))
        same = old is not None and [*map(_shape, old.shards)] == [*map(_shape, shards)]
        if same and old is not None:  # what it says of the shards stays a claim, which `verify` holds them to
            shards = tuple(
                one if one.crc is not None else replace(one, crc=before.crc)
                for one, before in zip(shards, old.shards, strict=True)
            )
            if old.shards == shards:
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
            format=self.formats[0],
            shards=shards,
            fields=dict(sorted(self.fields.items())),
            field_bytes=self.field_bytes,
            skipped=0,
            schema=self._schema(),
            classes={},
            features=feature_spec(self.fields, self._kinds(), samples, self.lists)
            if self.formats[0] == "tfrecord"
            else {},
            made=made,
            fingerprint=show_fingerprint(total) if complete else "",
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


def find_own(path: str) -> DatasetFile | None:
    """Return what a dataset file of ours says, damaged or not ours: None."""
    try:
        return read_dataset(read_small(path), path)
    except (OSError, ShardError):
        return None


def _same(old: Any, new: Any) -> bool:
    """Tell whether two sidecars' tables speak of the same samples and fields at the same places."""
    from shardtool.read.opened import places_of

    return bool(places_of(old) == places_of(new))


def _shape(shard: ShardEntry) -> tuple[str, int, int, str, str]:
    """Return what is known of a shard without reading its payloads."""
    return shard.name, shard.size, shard.samples, shard.first_key, shard.last_key
