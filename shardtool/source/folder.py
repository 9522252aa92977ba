"""A tree of files as a source, where those that share a key are one sample: a folder, several of them, an archive."""

from __future__ import annotations

import os
import re
import stat
from array import array
from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from itertools import permutations
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple, cast

from shardtool.dataset.find import listed_by, sidecar_path, usual_names
from shardtool.dataset.shard_file import PackedFile, ShardFile
from shardtool.errors import CorruptShard, InvalidRequest, SampleFailed, listing, printable
from shardtool.format import tar, zip_read
from shardtool.pattern import ShardPattern, is_packed_name, is_shard_name
from shardtool.request.options import TOP_FOLDER, CreateOptions
from shardtool.skipped import SkipCode, Skipped
from shardtool.source.base import Listing, Source, check_skipped
from shardtool.source.scan import NamedFiles, ScanPart, ScanRules, Tree
from shardtool.storage import places as storage
from shardtool.values import BLOCK, SPAN, SPLIT_NAMES, SpanFile, counted, is_utf8, output_text, to_bytes, to_text
from shardtool.wording import either, flag, option, typed_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.entries.classes import Classes
    from shardtool.entries.entries import Entries, Names
    from shardtool.execute.pool import Pool
    from shardtool.format.zip_read import ZipMember
    from shardtool.request.settings import Observer
    from shardtool.select.names import KeyPattern
    from shardtool.source.base import Writable

    Found = tuple[Entries, tuple[Skipped, ...], list[str]]


_WILD = re.compile(rb"[*?\[]")  # what a glob does not take for itself


class FolderSource(Source):
    """A tree of files."""

    may_skip_names = True

    def __init__(self, source: str, options: CreateOptions, outputs: Iterable[ShardPattern]) -> None:
        self._name = name_of(source)
        self._source, self._options = source, options
        self._tree = open_tree(source, options, outputs)

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """List the samples of the tree."""
        options, pattern = self._options, None
        if options.key_pattern is not None:
            from shardtool.select.names import KeyPattern

            pattern = KeyPattern(options.key_pattern)
        entries, skipped, notes = self._list(pool, observer, pattern)
        self.by_key = options.sort_by is None
        check_skipped(self._source, skipped, options.on_error, f"{option('exclude')} them")
        of_shards = shards_note(entries, named=bool(options.include))
        notes += filter(None, [of_shards])
        if pattern is not None:
            pattern.check_matched(entries.keys)
        elif options.dots is None and not entries.folders:
            check_torn(entries)
        if not of_shards:
            notes += self._layout_notes(entries)
        from shardtool.source.selecting import chosen, in_order, sampled, with_fields

        listed = with_fields(Listing(entries, skipped, self._name, tuple(notes)), options, pool)
        if options.label_from_folder:  # a class has its number whether its samples are chosen or not
            from shardtool.dataset.dataset_file import open_classes

            depth, known = 1 if options.split_from_folder else 0, open_classes(options.classes_from)
            below = self._below_folders(listed.skipped)
            entries = label_from_folder(listed.entries, known, depth=depth, skipped=below)
            listed = replace(listed, entries=entries, notes=(*listed.notes, *split_note(entries)))
        listed = sampled(chosen(listed, options, may_lack_values=self.may_lack_values), options)
        if options.on_error == "skip" and not options.portable:
            from shardtool.select.names import skip_unsafe_names

            entries, unsafe = skip_unsafe_names(listed.entries)
            listed = replace(listed, entries=entries, skipped=listed.skipped + unsafe)
        return in_order(listed, options)

    def _list(self, pool: Pool, observer: Observer, pattern: KeyPattern | None) -> Found:
        """Return the samples that files make, with the keys that a pattern gives them."""
        parts = self._tree.scan(pool, observer)
        entries, skipped = self._with_keys(*collect(self._tree.root, parts), pattern)
        return entries, skipped, left_behind_notes(parts)

    def _with_keys(
        self, entries: Entries, skipped: tuple[Skipped, ...], pattern: KeyPattern | None
    ) -> tuple[Entries, tuple[Skipped, ...]]:
        """Return samples and what was left out with the keys of a pattern; names that look torn are refused before."""
        if pattern is None:
            return entries, skipped
        from shardtool.entries.entries import Names
        from shardtool.select.names import with_keys

        if self._options.dots is None:
            check_torn(entries)
        old = [to_bytes(one.key) for one in skipped if one.key]
        new = dict(zip(old, iter(pattern.split(Names.of(old))[0]), strict=True))
        skipped = tuple(one._replace(key=to_text(new.get(to_bytes(one.key), b""))) for one in skipped)
        return without_torn(with_keys(entries, pattern), skipped), skipped

    def _layout_notes(self, entries: Entries) -> list[str]:
        """Note which command pairs the files of the folder, unless the user said which files and fields are meant."""
        said = ("key_pattern", "join", "select_fields", "drop_fields")
        if any(map(self._options.is_given, said)) or entries.folders:
            return []
        from shardtool.source.layouts import find_layout

        advice = find_layout(entries, self._source, is_archive=entries.spans is not None)
        return [str(advice)] if advice is not None else []

    def _below_folders(self, skipped: tuple[Skipped, ...]) -> tuple[Skipped, ...]:
        """Return what was left out, with its paths below the folders that paths start with."""
        return skipped

    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:
        """Return a column of metadata, `key`, `path`, `folder` or `size` of each sample, or the label of `cls`."""
        from shardtool.select.names import table_of

        table = table_of(listed.entries, listed.shards)
        labelled = name == "cls" and self._options.label_from_folder and name not in table.column_names
        if name == TOP_FOLDER or labelled:
            return split_folders(listed.entries.keys, in_order=self.by_key)
        if name not in table.column_names:
            remedy = f"{option('join')} adds a table's columns, {option('columns_from')} those of fields."
            expected = f"one of {listing(table.column_names, 100)}"
            raise InvalidRequest(name, "no such column", expected=expected, remedy=remedy)
        return table.column(name)


def open_tree(source: str, options: CreateOptions, outputs: Iterable[ShardPattern]) -> Tree:
    """Return a source folder, in which outputs are passed over.

    Raises:
        InvalidRequest: There is no such folder.
    """
    root = storage.source_root(source, needed=True)
    below = [(storage.inside(pattern.folder, root), pattern) for pattern in outputs]
    own = tuple((folder, pattern) for folder, pattern in below if folder is not None)
    dots = options.dots or "first"
    return Tree(root, ScanRules(options.include, options.exclude, options.hidden, options.symlinks, dots, own))


def name_of(source: str) -> str:
    """Return the name of a folder for outputs: of a link, that of what it leads to; of a whole bucket, the bucket's."""
    if storage.is_url(source):
        return printable(to_bytes(source.rstrip("/").rpartition("/")[2]))
    return printable(os.fsencode(os.path.basename(os.path.realpath(source))))


def left_behind_notes(parts: Iterable[ScanPart]) -> list[str]:
    """Note files that operating systems leave in folders; they are passed over, as hidden names are."""
    found = sum((part.left_behind for part in parts), Counter[bytes]())
    if not found:
        return []
    names = [printable(name) for name, _ in found.most_common()]
    what = counted(found.total(), "name that an operating system made, passed over")
    return [f"{what}: {listing(names)} ({flag('hidden')} takes them)"]


# A tree of files becomes `Entries`: a sample is the files that share a key. What a tree holds besides samples is not
# passed over in silence: it is returned beside them, and `create` decides what that means.


def collect(root: bytes, parts: list[ScanPart]) -> tuple[Entries, tuple[Skipped, ...]]:
    """Return the samples that were found below `root`, and what else there is.

    Args:
        root: Ending in a slash.
        parts: What `share_out` and `scan` found, in key order.

    Raises:
        InvalidRequest: Too many different fields.
    """
    import numpy as np

    from shardtool.entries.entries import Entries, FieldRows, Names
    from shardtool.select.fields import check_count

    skipped = sorted([one for part in parts for one in part.skipped], key=lambda one: to_bytes(one.path))
    names = sorted({name for part in parts for name in part.fields})
    remedy = f"If the names have dots in them, {option('dots', 'last')} makes the last ending the field."
    check_count(printable(root), names, remedy)
    place = {name: at for at, name in enumerate(names)}
    codes = [np.zeros(0, np.uint16)]
    for part in parts:
        own = np.array([place[name] for name in part.fields], np.uint16)
        codes.append(own[np.frombuffer(part.codes, np.uint32)])
    counts = np.frombuffer(b"".join(part.counts for part in parts), np.uint32)
    entries = Entries(
        root=root,
        keys=Names.parse(b"".join(part.keys[0] for part in parts)),
        first=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64))),
        fields=tuple(to_text(name) for name in names),
        rows=FieldRows(
            code=np.concatenate(codes),
            kind=np.frombuffer(b"".join(part.kinds for part in parts), np.uint8),
            size=np.frombuffer(b"".join(part.sizes for part in parts), np.int64),
            mtime_ns=np.frombuffer(b"".join(part.mtimes for part in parts), np.int64),
            changed_ns=np.frombuffer(b"".join(part.changed for part in parts), np.int64),
        ),
    )
    return without_torn(entries, skipped), tuple(skipped)


def without_torn(entries: Entries, skipped: Iterable[Skipped]) -> Entries:
    """Return the samples that lost no field: the others are left out whole."""
    torn = {to_bytes(one.key) for one in skipped if one.key}
    if not torn:
        return entries
    return entries.without([at for at in range(len(entries)) if entries.keys[at] in torn])


def check_torn(entries: Entries) -> None:
    """Refuse names that WebDataset's rule would tear apart, such as `scan.2019.01.jpg`, unless a rule was asked for.

    A field with a dot is common (`a.seg.png`). It is suspicious where a part of it is a number, or
    where nearly every file has such a field of its own.

    Raises:
        InvalidRequest: Names look torn.
    """
    dotted = [code for code, name in enumerate(entries.fields) if "." in name]
    if not dotted:
        return
    uses = entries.code_counts()
    numbered = [
        code for code in dotted if any(part.isdigit() or not part for part in entries.fields[code].split(".")[:-1])
    ]
    rows = sum(uses[code] for code in dotted)
    lonely = len(dotted) > 1 and len(entries) > 1 and rows < 2 * len(dotted)
    if not numbered and not lonely:
        return
    row = int((entries.rows.code == (numbered or dotted)[0]).argmax())
    name = printable(entries.path(row))
    field = printable(entries.fields[entries.rows.code[row]])
    key = printable(entries.keys[int(entries.owners(row))])
    found = f"dots in {counted(rows, 'name')}: WebDataset's rule makes this one's key {key!r}, its field {field!r}"
    remedy = (
        f"Choose {option('dots', 'last')} (only the last ending is the field; add {flag('portable')} for "
        f"readers that end the key at the first dot), or {option('dots', 'first')} if that is what you want."
    )
    raise InvalidRequest(name, found, remedy=remedy)


def label_from_folder(
    entries: Entries, known: Classes | None = None, *, depth: int = 0, skipped: Iterable[Skipped] = ()
) -> Entries:
    """Give each sample the field `cls`: the number of its top folder, in the order of the bytes of their names.

    This is torchvision's ImageFolder convention.

    Args:
        entries: The samples, sorted by their keys.
        known: The numbers that classes have already.
        depth: How many folders lie above those of the classes.
        skipped: What is not among the samples, but in folders of classes.

    Raises:
        InvalidRequest: Samples lie beside the class folders, or have a field `cls` already.
    """
    import numpy as np

    from shardtool.entries.arrow import number_array
    from shardtool.entries.classes import number_classes
    from shardtool.entries.entries import Names
    from shardtool.select.fields import Field, with_fields

    if not len(entries):
        return entries
    if "cls" in entries.fields:
        raise InvalidRequest(option("label_from_folder"), "the samples have a field 'cls' already")
    expected = "paths such as SPLIT/CLASS/FILE" if depth else "paths such as CLASS/FILE"
    spans = _folders(entries.keys, depth, ("label_from_folder", expected))
    # A class keeps its number where all of its samples are left out: it is there, and may be read tomorrow.
    paths = [to_bytes(one.path).split(b"/") for one in skipped if one.code != "no-field"]
    failed = {parts[depth] for parts in paths if len(parts) > depth + 1}
    number, names = number_classes({*(name for _, _, name in spans), *failed}, "cls", known)
    label = np.repeat(np.array([number[name] for _, _, name in spans]), [high - low for low, high, _ in spans])
    labels = Names.of(b"%d" % at for at in range(len(names))).take(label)
    every = np.ones(len(entries), bool)
    return with_fields(entries, [Field("cls", labels, every, "int64", names, number_array(label))])


def split_folders(keys: Names, *, in_order: bool = True) -> pa.ChunkedArray:
    """Return the name of the top folder of each sample, which says its split.

    Args:
        keys: One per sample.
        in_order: Whether they are sorted.

    Raises:
        InvalidRequest: Samples lie beside these folders.
    """
    import numpy as np
    import pyarrow as pa

    from shardtool.entries.arrow import number_array, strings

    if not in_order:
        order = keys.sorted_order()
        return split_folders(keys.take(order)).take(number_array(np.argsort(order)))
    spans = _folders(keys, 0, ("split_from_folder", "paths such as SPLIT/FILE"))
    which = np.repeat(np.arange(len(spans)), [high - low for low, high, _ in spans])
    return pa.chunked_array([strings([name for _, _, name in spans]).take(number_array(which))])


def split_note(entries: Entries) -> tuple[str, ...]:
    """Return what the user should know of classes that are called like splits."""
    classes = entries.values.classes.get("cls", [])
    found = [name for name in classes if name.lower() in SPLIT_NAMES]
    if len(found) < min(2, len(classes)) or not found:
        return ()
    shown = listing(found)
    label, split = option("label_from_folder"), option("split_from_folder")
    return (f"{label} takes {shown} for classes: {split} takes them for splits, and labels below",)


def _folders(keys: Names, depth: int, asked: tuple[str, str]) -> list[tuple[int, int, bytes]]:
    """Return where the samples of each folder start and end, and its name, `depth` folders below the top.

    Keys are sorted, so this is a few bisections.

    Args:
        keys: One per sample.
        depth: How many folders lie above.
        asked: The option that wants to know, and what it expects.

    Raises:
        InvalidRequest: Samples lie beside these folders.
    """
    spans, beside = [(0, len(keys), b"")], list[str]()
    for _ in range(depth + 1):
        found = []
        for low, high, above in spans:
            at = low
            while at < high:
                name, slash, _rest = keys[at][len(above) :].partition(b"/")
                if not slash:
                    path = printable(_WILD.sub(rb"[\g<0>]", keys[at]))
                    beside.append(path + ".*" if b"/" in keys[at] else f"./{path}.*")  # as `exclude` takes it
                    at += 1
                    continue
                end = bisect_left(cast("Sequence[bytes]", keys), above + name + b"0", at, high)  # "0" follows "/"
                found.append((at, end, above + name + b"/"))
                at = end
        spans = found
    if beside:
        if len(beside) == len(keys):
            problem = f"no sample is in a folder below the source: {listing(beside)}"
            raise InvalidRequest(option(asked[0]), problem, expected=asked[1])
        problem = f"{counted(len(beside), 'sample')} in no such folder: {listing(beside)}"
        left_out = either(f"exclude=({beside[0]!r}, ...)", f"--exclude {quote(beside[0])}")
        remedy = f"Move them, or leave them out: {left_out}."
        raise InvalidRequest(option(asked[0]), problem, expected=asked[1], remedy=remedy)
    return [(low, high, path.split(b"/")[depth]) for low, high, path in spans]


# Several folders as a source: files that share a key, whichever folder they lie in, are one sample.
#
# `images/cat/1.jpg` and `masks/cat/1.png` are the fields jpg and png of the sample `cat/1`: keys count from each
# folder. An ending that files of two folders have is no name for a field; each of these files is called by its folder
# too, before its ending, by which readers decode: `images.png` and `masks.png`. That is decided by what the folders
# hold, for all samples alike.


_SHOWN = 3


class FoldersSource(FolderSource):
    """Trees of files that share keys."""

    def __init__(self, sources: Sequence[str], options: CreateOptions, outputs: Iterable[ShardPattern]) -> None:
        self._options, outputs = options, [*outputs]
        self._trees = [open_tree(source, options, outputs) for source in sources]
        self._labels = label(sources)
        self._name = ",".join(map(printable, self._labels))
        self._source = ", ".join(sources)

    def _list(self, pool: Pool, observer: Observer, pattern: KeyPattern | None) -> Found:
        found = [tree.scan(pool, observer) for tree in self._trees]
        import numpy as np

        from shardtool.select.names import find_groups, grouped

        trees, skipped = [], list[Skipped]()
        for tree, label, parts in zip(self._trees, self._labels, found, strict=True):
            entries, left_out = collect(tree.root, parts)
            if self._options.dots is None:
                check_torn(entries)
            entries, left_out = self._with_keys(entries, left_out, pattern)
            trees.append(entries)
            skipped += [one._replace(path=f"{to_text(label)}/{one.path}") for one in left_out]
        names = self._name_fields([entries.fields for entries in trees])
        joined = self._join(trees, names)
        groups = find_groups(joined.keys, by_key=True)
        has = np.zeros((len(trees), len(groups.first)), np.bool_)  # whether a folder has a part of a sample
        has[np.repeat(np.arange(len(trees)), [*map(len, trees)]), groups.of_part] = True
        self._check_shared(trees, has)
        entries = grouped(joined, groups)
        notes = left_behind_notes([part for parts in found for part in parts])
        if apart := sorted({name for one in names for ending, name in one.items() if name != ending}):
            notes.append(f"fields called by their folders, for endings are alike: {listing(apart, _SHOWN)}")
        lacking = _lacking(entries, has, self._labels)
        if self._options.complete:
            skipped += lacking
        elif lacking:
            notes.append(self._lacking_note(lacking, has))
        entries = without_torn(entries, skipped)
        return entries, tuple(sorted(skipped, key=lambda one: (to_bytes(one.path), to_bytes(one.key)))), notes

    def _below_folders(self, skipped: tuple[Skipped, ...]) -> tuple[Skipped, ...]:
        return tuple(one._replace(path=one.path.partition("/")[2]) for one in skipped)

    def _name_fields(self, endings: Sequence[Sequence[str]]) -> list[dict[str, str]]:
        """Return, for each folder, the field that files with an ending are.

        Raises:
            InvalidRequest: Two folders would give one field.
        """
        uses = Counter(ending for one in endings for ending in one)
        names = [
            {ending: f"{to_text(label)}.{ending}" if uses[ending] > 1 else ending for ending in one}
            for label, one in zip(self._labels, endings, strict=True)
        ]
        fields = Counter(name for one in names for name in one.values())
        if twice := [name for name, count in fields.items() if count > 1]:
            found = f"files of two folders that would be the field {printable(twice[0])!r}"
            remedy = "Rename a folder, or the files."
            raise InvalidRequest(self._source, found, expected="a field of each", remedy=remedy)
        return names

    def _join(self, trees: Sequence[Entries], names: Sequence[dict[str, str]]) -> Entries:
        """Return the parts that each folder has of samples, one folder after the other."""
        import numpy as np

        from shardtool.entries.entries import Entries, FieldRows, Names
        from shardtool.select.fields import check_count, paths_of

        fields = sorted({name for one in names for name in one.values()}, key=to_bytes)
        check_count(self._source, fields)
        place = {name: at for at, name in enumerate(fields)}
        codes, paths = [], []
        for entries, label, named in zip(trees, self._labels, names, strict=True):
            code = np.array([place[named[name]] for name in entries.fields], np.uint16)
            codes.append(code[entries.rows.code])
            chunks = paths_of(entries).chunks()
            paths += [b"".join([label + b"/" + path + b"\0" for path in some]) for _, some in chunks]
        rows = [entries.rows for entries in trees]
        return Entries(
            root=b"",
            keys=Names.parse(b"".join(entries.keys.data for entries in trees)),
            first=np.append(0, np.cumsum(np.concatenate([one.counts() for one in trees]))),
            fields=tuple(fields),
            rows=replace(FieldRows.joined(rows, codes), paths=Names.parse(b"".join(paths))),
            identity=" ".join(storage.identity(tree.root) for tree in self._trees),
            folders=dict(zip(self._labels, (tree.root for tree in self._trees), strict=True)),
        )

    def _check_shared(self, trees: Sequence[Entries], has: NDArray[np.bool_]) -> None:
        """Refuse folders that share no key: then their files are no parts of the same samples.

        Raises:
            InvalidRequest: No two of them share one.
        """
        for label, entries in zip(self._labels, trees, strict=True):
            if not len(entries):
                found = f"no files in {printable(label)}"
                remedy = f"Look at {option('include')}, {option('exclude')} and {option('hidden')}."
                raise InvalidRequest(self._source, found, expected="files such as cat/0001.jpg in each", remedy=remedy)
        if not (has.sum(axis=0) > 1).any():
            first = [
                f"{printable(label)} has '{printable(entries.keys[0])}'"
                for label, entries in zip(self._labels, trees, strict=True)
            ]
            expected = "files that share their names but for the endings: images/a.jpg and masks/a.png"
            remedy = "To pack folders one beside the other, name the folder that they lie in."
            found = f"no key is in two of the folders: {listing(first, _SHOWN)}"
            raise InvalidRequest(self._source, found, expected=expected, remedy=remedy)

    def _lacking_note(self, lacking: Sequence[Skipped], has: NDArray[np.bool_]) -> str:
        """Return what the user should know of samples without a file of each folder."""
        counts = [
            f"{int((~one).sum()):,} without one of {printable(label)}"
            for label, one in zip(self._labels, has, strict=True)
            if not one.all()
        ]
        named = listing([printable(one.key) for one in lacking], _SHOWN)
        what = f"{counted(len(lacking), 'sample')} without a file of each folder, packed with what they have"
        return f"{what}: {named} ({'; '.join(counts)}; {flag('complete')} refuses them)"


def label(sources: Sequence[str]) -> list[bytes]:
    """Return a name for each folder: the last part of its path, and where two share that, the parts before too.

    Raises:
        InvalidRequest: One of them lies in another, or is named twice.
    """
    real = [os.fsencode(one if storage.is_url(one) else os.path.realpath(one)) for one in sources]
    for (one, inner), (other, outer) in permutations(zip(sources, real, strict=True), 2):
        if (inner + b"/").startswith(outer.rstrip(b"/") + b"/"):
            found = f"the same folder as {other}" if inner == outer else f"lies in {other}"
            raise InvalidRequest(one, found, expected="folders beside each other", remedy="Name each of them once.")
    parts = [path.split(b"/")[1:] for path in real]
    labels, depth = [b"_".join(one[-1:]) for one in parts], 1
    while len({*labels}) < len(labels) and depth < max(map(len, parts)):
        depth += 1
        labels = [b"_".join(one[-depth:]) for one in parts]
    if len({*labels}) < len(labels):
        raise InvalidRequest(", ".join(sources), "folders of one name", expected="a name of its own for each")
    return labels


def _lacking(entries: Entries, has: NDArray[np.bool_], labels: Sequence[bytes]) -> list[Skipped]:
    """Return the samples that some folder has no file of, as rows of what is left out."""
    found = []
    for at in (~has.all(axis=0)).nonzero()[0].tolist():
        without = listing([printable(label) for label, there in zip(labels, has[:, at], strict=True) if not there])
        path = to_text(entries.path(int(entries.first[at])))
        found.append(Skipped(entries.key(at), path, "incomplete", f"no file of its key in {without}"))
    return found


# Files of a folder that are shards.


EXPECTED = "a folder of samples"
_LOOKED_AT = 8  # shards of a kind that show whether they are of a dataset


def shards_note(entries: Entries, *, named: bool) -> str:
    """Return what the user should know of files in a folder that are shards; empty where there are none.

    Args:
        entries: The files.
        named: Whether the user has said which files are meant.

    Raises:
        InvalidRequest: They are those of a dataset, or all that there is, and nobody has said that they are meant.
    """
    counts = entries.code_counts()
    codes = [code for code, field in enumerate(entries.fields) if counts[code] and is_shard_name(f"x.{field}")]
    if not codes:
        return ""
    total = sum(counts[code] for code in codes)
    rows = [row for code in codes for row in (entries.rows.code == code).nonzero()[0][:_LOOKED_AT].tolist()]
    first = printable(entries.path(rows[0]))
    alone = total == len(entries.rows.code)
    for path in () if named else (os.fsdecode(entries.place(row)) for row in rows):
        if alone or _is_of_dataset(path):
            found = "a shard, as all files here are" if alone else "a shard of a dataset"
            remedy = f"{again()}; {option('exclude')} leaves them out; {only('*')} packs the files as they are."
            raise InvalidRequest(path, found, expected=EXPECTED, remedy=remedy)
    files = f"{counted(total, 'file')} that {'is a shard' if total == 1 else 'are shards'}"
    return f"{files}, such as {first}, packed as any file: {again()}"


def _is_of_dataset(path: str) -> bool:
    """Tell whether a shard has its index beside it, or a dataset file of the usual name that lists it."""
    folder, shard = storage.folder_of(path), storage.base_name(path)
    names = usual_names([shard]) if is_shard_name(shard) else ()
    listed = any(output_text(shard) in listed_by(storage.join(folder, name)) for name in names)
    return listed or storage.is_file(sidecar_path(path, None))


def again() -> str:
    """Return what to do with shards instead."""
    return f"{either('`reshard`', '`shardtool reshard`')} packs the samples of shards into other shards"


def only(name: str) -> str:
    """Return the option that takes one name."""
    return either(f"include=({name!r},)", f"--include {quote(name)}")


# An archive: a zip or a tar of files is packed as the folder would be that it unpacks to.
#
# Members are read where they lie, and nothing is unpacked to disk, but for compressed tars: those can only be
# read in sequence, so that their files are copied to one temporary file beside the output, once.
#
# Members go by the rules of a folder: hidden names, globs, keys and fields.
#
# A name that no file below a folder could have, and a member that cannot be read, is listed beside the samples, as what
# a folder holds besides them is.


_KEPT_A_MEMBER = 128  # bytes, besides its name
_KEPT_ALWAYS, _KEPT_A_PACKED_BYTE = 2**27, 128  # how much listing a compressed tar may keep
_LONGEST = 2**13  # bytes of a name: a key and a field, as long as they may be
_FOLDER = b"5"
_LINKS = (b"1", b"2")


class _Member(NamedTuple):
    """A member that is no folder; `problem` is why it cannot be packed."""

    name: bytes
    offset: int
    size: int
    problem: tuple[SkipCode, str] | None


def is_unsafe(name: bytes) -> bool:
    """Tell whether a name is no path of a file below a folder."""
    return b"\0" in name or any(part in (b"", b".", b"..") for part in name.split(b"/"))


def _link() -> tuple[SkipCode, str]:
    cure = f"{typed_option('symlinks', 'skip')} leaves it out"
    return "special-file", f"a link, which is not followed in an archive; {cure}"


def _zip_members(file: ShardFile | PackedFile) -> Iterator[_Member]:
    places = array("q")
    with ShardFile(file.path) as heads:  # two places of the file, each read in its order
        for one in zip_read.members(file.read, file.size, file.path):
            problem = _zip_problem(one)
            start = one.offset + len(one.name) if problem else zip_read.payload_start(heads.read, one, file.path)
            places.extend((one.offset, start + one.packed))
            if not one.name.endswith(b"/"):
                name = one.name if is_utf8(one.name) else one.name.decode("cp437").encode()
                yield _Member(name, one.offset, one.size, problem)
    import numpy as np

    starts = np.array(places[::2], np.int64)
    order = np.argsort(starts)
    if np.any(np.array(places[1::2], np.int64)[order][:-1] > starts[order][1:]):
        raise CorruptShard(file.path, "members that lie in each other: a zip made to unpack to far too much")


def _zip_problem(one: ZipMember) -> tuple[SkipCode, str] | None:
    """Return why a member cannot be packed."""
    if one.encrypted:
        return "unreadable", "encrypted"
    if one.method not in (zip_read.STORED, zip_read.DEFLATED):
        return "unreadable", f"compressed by method {one.method}, which is not read"
    return _link() if stat.S_ISLNK(one.mode) else None


def _tar_members(file: ShardFile | PackedFile) -> Iterator[_Member]:
    for one in tar.walk(file.read, file.path):
        if one.kind == _FOLDER or one.name.endswith(b"/"):
            continue
        problem: tuple[SkipCode, str] | None = None
        if not one.is_file:
            problem = _link() if one.kind in _LINKS else ("special-file", "no plain file")
        yield _Member(one.name, one.data, one.size, problem)


class ArchiveSource(FolderSource):
    """The files of an archive.

    Args:
        path: Where it is.
        folder: The folder in it from which keys count; empty, or ending in a slash.
        options: What is asked for.
    """

    def __init__(self, path: str, folder: str, options: CreateOptions) -> None:
        self._path, self._folder, self._options = path, os.fsencode(folder), options
        self._source = os.path.join(path, folder).rstrip("/")
        self._name = printable(os.fsencode(os.path.join(os.path.basename(path), folder).rstrip("/")))
        self._form = "zip" if path.lower().endswith(".zip") else "tar"
        self._packed = is_packed_name(os.path.basename(path))
        try:
            self._fact = storage.file_stat(path)
        except OSError as error:
            raise InvalidRequest(path, str(error.strerror)) from None
        self._copied: list[tuple[int, int]] = []  # of a compressed tar: where payloads lie that are copied, in order

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """List the samples of the archive."""
        listed = super().list_samples(pool, observer)
        return self._with_places_in_copy(listed) if self._packed else listed

    def write_binary(self, file: Writable) -> None:
        """Copy the files of a compressed tar that are packed.

        Raises:
            SampleFailed: The archive has changed.
            CorruptShard: It is damaged.
        """
        with PackedFile(self._path) as packed:
            for offset, size in self._copied:
                for done in range(0, size, BLOCK):
                    block = packed.read(offset + done, min(BLOCK, size - done))
                    if len(block) < min(BLOCK, size - done):
                        raise CorruptShard(self._path, "ends too early", offset=offset + done)
                    file.write(memoryview(block))
        fact = storage.file_stat(self._path)
        if (fact.st_size, fact.st_mtime_ns) != (self._fact.st_size, self._fact.st_mtime_ns):
            expected = "an archive that stays as it was when the run began"
            remedy = f"Run again with {option('if_exists', 'resume')}."
            raise SampleFailed(self._path, "changed while it was packed", expected=expected, remedy=remedy)

    def _list(self, pool: Pool, observer: Observer, pattern: KeyPattern | None) -> Found:  # noqa: ARG002 - one process
        import numpy as np

        from shardtool.entries.entries import FieldSpans

        options = self._options
        dots = options.dots or "first"
        rules = ScanRules(options.include, options.exclude, options.hidden, options.symlinks, dots)
        with PackedFile(self._path) if self._packed else ShardFile(self._path) as file:
            part, offsets = self._members(file, rules)
        skipped, part.skipped = part.skipped, []
        changed = max(self._fact.st_ctime_ns, self._fact.st_mtime_ns)
        part.mtimes, part.changed = array("q", bytes(8 * len(offsets))), array("q", [changed]) * len(offsets)
        entries, _ = collect(b"", [part])
        observer.listed(len(entries))
        stamp = self._fact.st_size, self._fact.st_mtime_ns
        file_of, unknown = np.zeros(len(entries), np.uint32), np.broadcast_to(np.int64(-1), len(offsets))
        files = () if self._packed else (SpanFile(os.fsencode(self._path), *stamp, self._form),)
        spans = FieldSpans(files, file_of, offsets, unknown)
        entries = replace(entries, spans=spans, identity=storage.identity(os.fsencode(self._path)))
        skipped.sort(key=lambda one: (to_bytes(one.path), to_bytes(one.key)))
        notes = [*left_behind_notes([part]), *self._notes(entries.keys.data)]
        return *self._with_keys(without_torn(entries, skipped), tuple(skipped), pattern), notes

    def _members(self, file: ShardFile | PackedFile, rules: ScanRules) -> tuple[ScanPart, NDArray[np.int64]]:
        """Return what the archive holds below its folder, and where each payload, or a zip's member, starts.

        Raises:
            CorruptShard: It is damaged, or claims more than there is.
            InvalidRequest: It holds a file twice.
        """
        files, kept, most = NamedFiles(rules), 0, max(_KEPT_ALWAYS, _KEPT_A_PACKED_BYTE * self._fact.st_size)
        folder, skipped = self._folder, files.part.skipped
        for member in _zip_members(file) if self._form == "zip" else _tar_members(file):
            kept += _KEPT_A_MEMBER + len(member.name)
            if kept > most:
                raise CorruptShard(file.path, "far more members than an archive of its size has")
            name = member.name
            while name.startswith(b"./"):
                name = name[2:]
            if not name.startswith(folder) or len(name) == len(folder):
                continue
            name = name[len(folder) :]
            if is_unsafe(name) or len(name) > _LONGEST:
                path = to_text(name[:_LONGEST])
                skipped.append(Skipped("", path, "unsafe-name", "a name that no file below a folder can have"))
                continue
            known = len(files.folders)
            split = files.split(name, member.size)
            kept += (len(files.folders) - known) * (_KEPT_A_MEMBER + name.rfind(b"/"))
            if split is None:
                continue
            if member.problem is None:
                files.add(split, member.size, member.offset, 0)
            elif member.problem != _link() or rules.symlinks != "skip":
                skipped.append(Skipped(to_text(split[0]), to_text(name), *member.problem))
        sizes, offsets, _ = files.in_order(file.path)
        files.part.kinds, files.part.sizes = bytearray([SPAN]) * len(sizes), array("q", sizes.tobytes())
        return files.part, offsets

    def _notes(self, keys: bytes) -> list[str]:
        """Note that all files lie in one folder, where folders are asked what they say."""
        asked = [name for name in ("label_from_folder", "split_from_folder") if getattr(self._options, name)]
        top, slash, _ = keys.partition(b"\0")[0].partition(b"/")
        if not asked or not slash or (b"\0" + keys).count(b"\0" + top + b"/") < keys.count(b"\0"):
            return []
        inner = os.path.join(self._source, printable(top))
        return [f"all files lie in the folder {printable(top)}: name {inner} for {flag(asked[0])} to see those in it"]

    def _with_places_in_copy(self, listed: Listing) -> Listing:
        """Return the samples with the places that their payloads get in the temporary file."""
        import numpy as np

        entries, spans = listed.entries, listed.entries.known_spans
        rows = np.flatnonzero(entries.rows.kind == SPAN)
        rows = rows[np.argsort(spans.offset[rows], kind="stable")]
        sizes, offset = entries.rows.size[rows], np.zeros(len(spans.offset), np.int64)
        offset[rows] = np.cumsum(sizes) - sizes
        self._copied = list(zip(spans.offset[rows].tolist(), sizes.tolist(), strict=True))
        return replace(listed, entries=replace(entries, spans=replace(spans, offset=offset)))
