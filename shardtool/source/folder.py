"""A folder of files as a source. Files that share a key form one sample. Top folders can name classes and splits."""

from __future__ import annotations

import importlib
import os
import re
import threading
from array import array
from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple, cast

from shardtool.dataset.payload import is_label_name
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import choose_text, flag_text, option_text
from shardtool.names import SPLIT_NAMES, to_bytes, to_text
from shardtool.request.create_options import TOP_FOLDER, CreateOptions
from shardtool.shard_samples import FILE
from shardtool.source.base import TASK_COUNT, Listing, Source, check_skipped
from shardtool.source.scan import make_scan_tasks, scan_items
from shardtool.source.scan_part import ALWAYS_CHANGED, FileCollector, ScanPart, ScanRules
from shardtool.source.source_checks import shards_note
from shardtool.storage import paths, remote
from shardtool.storage.remote import address
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from shardtool.entries.classes import Classes
    from shardtool.entries.sample_table import SampleTable
    from shardtool.entries.strings import PackedStrings
    from shardtool.execute.pool import Pool
    from shardtool.pattern import ShardPattern
    from shardtool.request.observer import Observer
    from shardtool.select.key_pattern import KeyPattern
    from shardtool.skipped import Skipped
    from shardtool.storage.remote.buckets import BucketEntry

    FolderListing = tuple[SampleTable, tuple[Skipped, ...], list[str]]


_GLOB_CHARACTERS = re.compile(rb"[*?\[]")


def add_folder_labels(
    entries: SampleTable, known: Classes | None, *, depth: int, skipped: Iterable[Skipped]
) -> SampleTable:
    """Add the class number of each sample as the field `cls`. Each top folder is a class, as in ImageFolder.

    Classes are numbered in the byte order of their names, unless `known` lists them. Samples must be sorted by key.
    `depth` is the number of folder levels above the class folders.
    """
    import numpy as np

    from shardtool.entries.arrow import number_array
    from shardtool.entries.classes import number_classes
    from shardtool.entries.strings import PackedStrings
    from shardtool.select.add_fields import NewField, add_fields

    if not len(entries):
        return entries
    if "cls" in entries.fields:
        raise InvalidRequest(option_text("label_from_folder"), "the samples already have a field 'cls'")
    expected = "paths such as SPLIT/CLASS/FILE" if depth else "paths such as CLASS/FILE"
    spans = _folder_spans(entries.keys, depth, ("label_from_folder", expected))
    # Number folders of skipped files, too, so class numbers do not change when these files become readable.
    # Those without a field never become samples.
    paths = [to_bytes(row.path).split(b"/") for row in skipped if row.code != "no-field"]
    failed = {parts[depth] for parts in paths if len(parts) > depth + 1}
    number_of, names = number_classes({*(name for _, _, name in spans), *failed}, "cls", known)
    counts = [high - low for low, high, _ in spans]
    sample_classes = np.repeat(np.array([number_of[name] for _, _, name in spans]), counts)
    texts = PackedStrings.of(b"%d" % index for index in range(len(names))).take(sample_classes)
    all_samples = np.ones(len(entries), bool)
    return add_fields(entries, [NewField("cls", texts, all_samples, "int64", names, number_array(sample_classes))])


def top_folders(keys: PackedStrings, *, in_order: bool = True) -> pa.ChunkedArray:
    """Return the top folder of each key. `in_order` means that `keys` is sorted."""
    import numpy as np
    import pyarrow as pa

    from shardtool.entries.arrow import bytes_array, number_array

    if not in_order:
        order = keys.sorted_order()
        return top_folders(keys.take(order)).take(number_array(np.argsort(order)))
    spans = _folder_spans(keys, 0, ("split_from_folder", "paths such as SPLIT/FILE"))
    folder_of_sample = np.repeat(np.arange(len(spans)), [high - low for low, high, _ in spans])
    return pa.chunked_array([bytes_array([name for _, _, name in spans]).take(number_array(folder_of_sample))])


def split_folder_notes(entries: SampleTable) -> tuple[str, ...]:
    """Return a note if class folders have names of splits, such as train and val."""
    classes = entries.values.classes.get("cls", [])
    split_names = [name for name in classes if name.lower() in SPLIT_NAMES]
    if len(split_names) < (1 if len(classes) == 1 else 2):
        return ()
    shown = format_list(split_names)
    label, split = option_text("label_from_folder"), option_text("split_from_folder")
    return (f"{label} uses {shown} as classes; if these folders are splits that contain class folders, add {split}",)


def _folder_spans(keys: PackedStrings, depth: int, option_and_paths: tuple[str, str]) -> list[tuple[int, int, bytes]]:
    spans, outside = [(0, len(keys), b"")], list[str]()
    for _ in range(depth + 1):
        inner_spans = []
        for low, high, parent in spans:
            sample = low
            while sample < high:
                name, slash, _rest = keys[sample][len(parent) :].partition(b"/")
                if not slash:
                    path = printable(_GLOB_CHARACTERS.sub(rb"[\g<0>]", keys[sample]))
                    # a pattern without "/" matches in all folders
                    outside.append(path + ".*" if b"/" in keys[sample] else f"./{path}.*")
                    sample += 1
                    continue
                # Find the first key after the folder. "0" is the byte after "/".
                end = bisect_left(cast("Sequence[bytes]", keys), parent + name + b"0", sample, high)
                inner_spans.append((sample, end, parent + name + b"/"))
                sample = end
        spans = inner_spans
    if outside:
        if len(outside) == len(keys):
            problem = f"no sample is in a folder below the source: {format_list(outside)}"
            raise InvalidRequest(option_text(option_and_paths[0]), problem, expected=option_and_paths[1])
        problem = f"{pluralize(len(outside), 'sample')} not deep enough in folders: {format_list(outside)}"
        exclude = choose_text(f"exclude=({outside[0]!r}, ...)", f"--exclude {quote(outside[0])}")
        remedy = f"Move them, or exclude them: {exclude}."
        raise InvalidRequest(option_text(option_and_paths[0]), problem, expected=option_and_paths[1], remedy=remedy)
    return [(low, high, path.split(b"/")[depth]) for low, high, path in spans]


class FolderSource(Source):
    """The files below a folder."""

    may_skip_unstorable = True

    def __init__(self, source: str, options: CreateOptions, outputs: Iterable[ShardPattern]) -> None:
        self._name = folder_name(source)
        self._source, self._options = source, options
        self._tree = open_tree(source, options, outputs)

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        options, pattern = self._options, None
        if options.key_pattern is not None:
            from shardtool.select.key_pattern import KeyPattern

            pattern = KeyPattern(options.key_pattern)
        entries, skipped, notes = self._list(pool, observer, pattern)
        self.by_key = options.sort_by is None
        check_skipped(self._source, skipped, options.on_error, f"exclude them with {option_text('exclude')}")
        note_on_shards = shards_note(entries, named=bool(options.include))
        if note_on_shards:
            notes.append(note_on_shards)
        if pattern is not None:
            pattern.check_matched(entries.keys)
        elif options.dots is None and not entries.folders:
            check_dots(entries)
        if not note_on_shards:
            notes += self._layout_notes(entries)
        from shardtool.source import selection

        listing = Listing(entries, skipped, self._name, tuple(notes))
        listing = selection.apply_field_options(listing, options, pool)
        # Number classes before choosing samples: the numbers must not depend on the choice.
        if options.label_from_folder:
            from shardtool.dataset.class_names import read_classes

            depth = 1 if options.split_from_folder else 0
            known = read_classes(options.classes_from)
            class_skipped = self._strip_folder(listing.skipped)
            entries = add_folder_labels(listing.entries, known, depth=depth, skipped=class_skipped)
            listing = replace(listing, entries=entries, notes=(*listing.notes, *split_folder_notes(entries)))
        return selection.join_and_filter(listing, options, optional_values=self.optional_values)

    def select_and_sort(self, listing: Listing, _read_existing_keys: object) -> Listing:
        from shardtool.source import selection

        options = self._options
        listing = selection.take_sample(listing, options)
        if options.on_error == "skip" and not options.portable:
            from shardtool.select.storable_names import skip_unsafe_names

            entries, unsafe = skip_unsafe_names(listing.entries)
            listing = replace(listing, entries=entries, skipped=listing.skipped + unsafe)
        listing = selection.sort_and_limit(listing, options)
        return selection.rename_listed_keys(listing, options, by_key=self.by_key)

    def _list(self, pool: Pool, observer: Observer, pattern: KeyPattern | None) -> FolderListing:
        parts = self._tree.scan(pool, observer)
        entries, skipped = self._apply_key_pattern(*collect_samples(self._tree.root, parts), pattern)
        return entries, skipped, system_file_notes(parts)

    def _apply_key_pattern(
        self, entries: SampleTable, skipped: tuple[Skipped, ...], pattern: KeyPattern | None
    ) -> tuple[SampleTable, tuple[Skipped, ...]]:
        if pattern is None:
            return entries, skipped
        from shardtool.entries.strings import PackedStrings
        from shardtool.select.key_pattern import apply_key_pattern

        if self._options.dots is None:
            check_dots(entries)
        old_keys = [to_bytes(row.key) for row in skipped if row.key]
        new_keys, _, _ = pattern.split(PackedStrings.of(old_keys))
        new_key_of = dict(zip(old_keys, iter(new_keys), strict=True))
        skipped = tuple(row._replace(key=to_text(new_key_of.get(to_bytes(row.key), b""))) for row in skipped)
        return drop_failed_samples(apply_key_pattern(entries, pattern), skipped), skipped

    def _layout_notes(self, entries: SampleTable) -> list[str]:
        layout_options = ("key_pattern", "join", "select_fields", "drop_fields")
        if any(map(self._options.is_given, layout_options)) or entries.folders:
            return []
        from shardtool.source.layouts import find_classes, find_layout

        is_archive = entries.spans is not None
        advice = find_layout(entries, self._source, is_archive=is_archive)
        label_options = ("label_from_folder", "split", "split_from_folder", "split_column", "where", "sort_by")
        if advice is None and not is_archive and not any(map(self._options.is_given, label_options)):
            advice = find_classes(entries, self._source)
        return [str(advice)] if advice is not None else []

    def _strip_folder(self, skipped: tuple[Skipped, ...]) -> tuple[Skipped, ...]:
        return skipped  # overridden for several folders

    def column(self, listing: Listing, name: str, option: str = "") -> pa.ChunkedArray:
        """Return a metadata column, or one of `key`, `path`, `folder`, `size` and `cls` (the top folder)."""
        from shardtool.select.sample_table import make_sample_table

        table = make_sample_table(listing.entries, listing.shards)
        is_label = name == "cls" and self._options.label_from_folder and name not in table.column_names
        if name == TOP_FOLDER or is_label:
            from shardtool.select.rename_keys import old_keys

            is_renamed = self._options.rename_keys is not None
            keys = old_keys(listing.entries) if is_renamed else listing.entries.keys
            return top_folders(keys, in_order=self.by_key and not is_renamed)
        if name not in table.column_names:
            join, columns_from = option_text("join"), option_text("columns_from")
            remedy = f"Add columns from a table with {join}, or from fields with {columns_from}."
            if is_label_name(name) and not self._options.label_from_folder:
                remedy = f"{flag_text('label_from_folder')} stores the top folders as the column cls. {remedy}"
            expected = f"one of {format_list(table.column_names, 100)}"
            raise InvalidRequest(option or listing.where, f"no column {name!r}", expected=expected, remedy=remedy)
        return table.column(name)


def open_tree(source: str, options: CreateOptions, outputs: Iterable[ShardPattern]) -> FileTree:
    """Open a source folder. Files that belong to `outputs` are ignored."""
    root = paths.source_root(source, needed=True)
    located = [(paths.path_inside_source(pattern.folder, root), pattern) for pattern in outputs]
    outputs_inside = tuple((folder, pattern) for folder, pattern in located if folder is not None)
    filters = (options.include, options.exclude, options.hidden, options.symlinks, options.dots or "first")
    return FileTree(root, ScanRules(*filters, outputs_inside))


def folder_name(source: str) -> str:
    """Return the name of a source folder, after following links, for the dataset file."""
    if address.is_url(source):
        return printable(to_bytes(source.rstrip("/").rpartition("/")[2]))
    return printable(os.fsencode(os.path.basename(os.path.realpath(source))))


def system_file_notes(parts: Iterable[ScanPart]) -> list[str]:
    """Return a note about ignored system files, such as Thumbs.db."""
    if not (counts := sum((part.system_files for part in parts), Counter[bytes]())):
        return []
    names = [printable(name) for name, _ in counts.most_common()]
    ignored = pluralize(counts.total(), "file that operating systems create")
    return [f"ignored {ignored}: {format_list(names)} (include them with {flag_text('hidden')})"]


def collect_samples(root: bytes, parts: list[ScanPart]) -> tuple[SampleTable, tuple[Skipped, ...]]:
    """Return the samples of `parts` as one table, and the skipped files."""
    import numpy as np

    from shardtool.entries.sample_table import FieldRows, SampleTable
    from shardtool.entries.strings import PackedStrings
    from shardtool.select.field_rows import check_field_count

    skipped = sorted([row for part in parts for row in part.skipped], key=lambda row: to_bytes(row.path))
    names = sorted({name for part in parts for name in part.fields})
    remedy = f"If names contain dots, use {option_text('dots', 'last')} to make the last extension the field."
    check_field_count(printable(root), names, remedy)
    code_of = {name: code for code, name in enumerate(names)}
    codes = [np.zeros(0, np.uint16)]
    for part in parts:
        part_codes = np.array([code_of[name] for name in part.fields], np.uint16)
        codes.append(part_codes[np.frombuffer(part.codes, np.uint32)])
    counts = np.frombuffer(b"".join(part.counts for part in parts), np.uint32)
    entries = SampleTable(
        root=root,
        keys=PackedStrings.parse(b"".join(part.keys[0] for part in parts)),
        first_rows=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64))),
        fields=tuple(to_text(name) for name in names),
        rows=FieldRows(
            code=np.concatenate(codes),
            kind=np.frombuffer(b"".join(part.kinds for part in parts), np.uint8),
            size=np.frombuffer(b"".join(part.sizes for part in parts), np.int64),
            mtime_ns=np.frombuffer(b"".join(part.mtimes for part in parts), np.int64),
            changed_ns=np.frombuffer(b"".join(part.changed for part in parts), np.int64),
        ),
    )
    return drop_failed_samples(entries, skipped), tuple(skipped)


def drop_failed_samples(entries: SampleTable, skipped: Iterable[Skipped]) -> SampleTable:
    """Drop each sample that has a skipped file."""
    if not (incomplete_keys := {to_bytes(row.key) for row in skipped if row.key}):
        return entries
    return entries.without([sample for sample in range(len(entries)) if entries.keys[sample] in incomplete_keys])


def check_dots(entries: SampleTable) -> None:
    """Raise an error for names that WebDataset's rule splits at the wrong dot, such as `scan.2019.01.jpg`.

    A field such as `seg.png` is allowed, unless a part before its last dot is a number or empty. If several such
    fields average fewer than two files each, the dots belong to names: an error if there are several samples.
    """
    if not (dotted := [code for code, name in enumerate(entries.fields) if "." in name]):
        return
    uses = entries.code_counts()
    parts_of = {code: entries.fields[code].split(".")[:-1] for code in dotted}
    with_number = [code for code, parts in parts_of.items() if any(part.isdigit() or not part for part in parts)]
    rows = sum(uses[code] for code in dotted)
    is_unique = len(dotted) > 1 and len(entries) > 1 and rows < 2 * len(dotted)
    if not with_number and not is_unique:
        return
    row = int((entries.rows.code == (with_number or dotted)[0]).argmax())
    name = printable(entries.path(row))
    field = printable(entries.fields[entries.rows.code[row]])
    key = printable(entries.keys[int(entries.samples_of(row))])
    found = f"dots in {pluralize(rows, 'name')}: by WebDataset's rule this key is {key!r}, and its field is {field!r}"
    portable = f"add {flag_text('portable')} for readers that end the key at the first dot"
    last = f"{option_text('dots', 'last')} (only the last extension is the field; {portable})"
    remedy = f"Use {last}, or {option_text('dots', 'first')} to keep WebDataset's rule."
    raise InvalidRequest(name, found, remedy=remedy)


# A thread imports these slow modules while workers list files.
_SLOW_IMPORTS = ("shardtool.dataset.sidecar_read", "shardtool.plan.plan")
_OBJECTS_PER_REPORT = 1000


class FileTree(NamedTuple):
    """A folder, or a prefix of a store. `root` ends in a slash."""

    root: bytes
    rules: ScanRules

    def scan(self, pool: Pool, observer: Observer) -> list[ScanPart]:
        """Return the samples in key order, divided into parts."""
        if paths.is_address(self.root):
            return [self._scan_objects(observer)]
        pool.check_access((self.root,))
        importer = threading.Thread(target=_import_ahead, daemon=True)
        top = ScanPart()  # filled while `tasks` is read
        tasks = make_scan_tasks(self.root, self.rules, TASK_COUNT, top)
        importer.start()
        parts: dict[int, ScanPart] = {}
        for number, part in pool.map(scan_items, tasks):
            parts[number] = part
            observer.listed(len(part.counts))
        importer.join()
        return [top.join_keys(), *(parts[number] for number in sorted(parts))]

    def _scan_objects(self, observer: Observer) -> ScanPart:
        where, total = to_text(self.root), 0

        def iter_and_report() -> Iterator[BucketEntry]:
            nonlocal total
            for total, entry in enumerate(remote.objects.iter_objects(where), 1):
                yield entry
                if total % _OBJECTS_PER_REPORT == 0:
                    observer.listed(_OBJECTS_PER_REPORT)

        part = collect_objects(iter_and_report(), self.rules)
        observer.listed(total % _OBJECTS_PER_REPORT)
        if not total:
            raise InvalidRequest(where, "nothing found", expected="a prefix with samples below it")
        return part


def _import_ahead() -> None:
    with suppress(Exception):
        for name in _SLOW_IMPORTS:
            importlib.import_module(name)


def collect_objects(objects: Iterable[BucketEntry], rules: ScanRules) -> ScanPart:
    """Return the objects that the rules include, sorted by key."""
    files = FileCollector(rules)
    for entry in objects:
        if name := files.split(to_bytes(entry.key), entry.size):
            files.add(name, entry.size, entry.version, entry.changed_ns if entry.version else ALWAYS_CHANGED)
    part, columns = files.part, files.in_order("")
    part.sizes, part.mtimes, part.changed = (array("q", column.tobytes()) for column in columns)
    part.kinds = bytearray([FILE]) * len(part.sizes)
    return part
