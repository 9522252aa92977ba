"""Layouts of folders whose files belong together although their names do not pair them: which command packs them.

`create FOLDER` makes one sample of the files that share a key. Masks with a suffix, `images/` next to `labels/`, a
table next to images, transcripts of LibriSpeech and folders of tables or archives become separate samples.
`find_layout` recognises such a layout from the listing and returns an `Advice`. It never changes what is packed.

The work is bounded: a few hundred names are looked up, whatever the size of the folder. No file is read, except the
head of one table.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from itertools import combinations
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple, cast

from shardtool.errors import format_list, printable
from shardtool.messages import choose_text, cli_words
from shardtool.names import IMAGE_ENDINGS, SPLIT_NAMES, to_bytes, to_text
from shardtool.storage import paths
from shardtool.storage.remote import address
from shardtool.table.detect import JSON_LINES_ENDINGS, PARQUET_ENDING, table_ending
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardtool.entries.sample_table import SampleTable

SAMPLED_KEYS, _RUN = 512, 16  # keys that are looked at, in runs: a key and its partner are mostly neighbours
_TESTED_KEYS = 64  # keys of a group whose partners are looked up
_MOST = 0.8  # share of a group that must have partners
_SOME = 0.05  # share of the samples that makes a group, or a field worth counting
_MAX_FOLDERS = 8  # more folders next to each other are classes
_MAX_STRAY_FILES = 64  # files next to folders
_MAX_DEPTH = 4  # of single folders in single folders
_MAX_SUFFIXES = 6
_MAX_TABLES = 3  # of one ending
_SHOWN_FIELDS = 3
_SUFFIX = re.compile(rb"[_\-. ](?=[A-Za-z])")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_ROLES = frozenset((
    "mask", "masks", "seg", "segmentation", "segmentations", "segmap", "label", "labels", "gt", "groundtruth", "truth",
    "matte", "alpha", "trimap", "depth", "depths", "disparity", "flow", "normal", "normals", "edge", "edges",
    "annotation", "annotations", "ann", "anno", "annot", "image", "images", "img", "imgs", "rgb", "color",
    "left", "right", "lr", "hr", "input", "inputs", "target", "targets", "caption", "captions", "transcript",
    "transcripts", "clean", "noisy",
))  # fmt: skip
_AUDIO = frozenset(("wav", "flac", "mp3", "ogg", "opus", "m4a", "aac"))
_VIDEO = frozenset(("mp4", "webm", "mkv", "avi", "mov", "m4v"))
_MEDIA = IMAGE_ENDINGS | _AUDIO | _VIDEO | {"avif", "jxl", "jp2", "heic"}
_PACKED = {"Parquet": (PARQUET_ENDING,), "JSON-lines": JSON_LINES_ENDINGS, "zip": (".zip",)}
_PAGES = {"Parquet": "docs/tables.md", "JSON-lines": "docs/tables.md", "zip": "docs/sources.md"}
_ROWS = "packs their rows"
_TRANSCRIPTS = "trans.txt"  # LibriSpeech: the transcripts of a chapter, a line for each clip


class Advice(NamedTuple):
    """What a listing shows, and what packs it as it is probably meant.

    Attributes:
        found: How many samples lack what, and why.
        command: A command, or a call in Python; empty if none describes the layout.
        effect: What the command does; without a command, the page of the documentation about the layout.
    """

    found: str
    command: str
    effect: str = "pairs them"

    def __str__(self) -> str:
        return f"{self.found}: `{self.command}` {self.effect}" if self.command else f"{self.found}: see {self.effect}"


class _Tree(NamedTuple):
    """The listed files of a folder, and what the user called it."""

    entries: SampleTable
    source: str
    sampled: list[int]  # numbers of samples

    @property
    def keys(self) -> Sequence[bytes]:
        """All keys, in the order of their bytes."""
        return cast("Sequence[bytes]", self.entries.keys)

    def has(self, key: bytes) -> bool:
        """Tell whether a sample has this key."""
        at = bisect_left(self.keys, key)
        return at < len(self.keys) and self.keys[at] == key

    def has_file(self, path: bytes) -> bool:
        """Tell whether a file has this path below the folder."""
        for match in re.finditer(rb"\.", path[path.rfind(b"/") + 1 :]):
            end = path.rfind(b"/") + 1 + match.start()
            at = bisect_left(self.keys, path[:end])
            if at < len(self.keys) and self.keys[at] == path[:end]:
                return path[end + 1 :] in self.fields(at)
        return False

    def fields(self, at: int) -> set[bytes]:
        """Return the fields of a sample."""
        first, last = self.entries.first[at : at + 2].tolist()
        return {to_bytes(self.entries.fields[code]) for code in self.entries.rows.code[first:last].tolist()}

    def endings(self, samples: Iterable[int]) -> set[str]:
        """Return the last endings of the files of some samples."""
        return {to_text(name).rpartition(".")[2].lower() for at in samples for name in self.fields(at)}

    def kinds(self, samples: Iterable[int]) -> set[str]:
        """Return the kinds of files of some samples: their endings, of which those of images are one kind."""
        return {"image" if ending in IMAGE_ENDINGS else ending for ending in self.endings(samples)}

    def inside(self, *names: bytes) -> str:
        """Return the path of a file or folder below the source."""
        path = self.source.rstrip("/") or "/"
        for name in filter(None, b"/".join(names).split(b"/")):
            path = paths.join(path, to_text(name))
        return path


def find_layout(entries: SampleTable, source: str, *, is_archive: bool = False) -> Advice | None:
    """Return what packs the files of a folder as they are probably meant; None: as they are listed.

    Args:
        entries: The samples, in the order of their keys.
        source: What the user called the folder.
        is_archive: Whether the source is a zip or tar: folders in it are no sources of their own.
    """
    count = len(entries)
    if count < 2:  # noqa: PLR2004 - a pair
        return None
    tree = _Tree(entries, source, _spread(count))
    finders = (_find_suffixes,) if is_archive else _FINDERS
    return next(filter(None, (find(tree) for find in finders)), None)


def _spread(count: int) -> list[int]:
    """Return the numbers of the samples that are looked at: all, or runs from the whole listing."""
    if count <= SAMPLED_KEYS:
        return [*range(count)]
    runs = SAMPLED_KEYS // _RUN
    return [run * (count - _RUN) // (runs - 1) + at for run in range(runs) for at in range(_RUN)]


def _some(values: Sequence[int], most: int = _TESTED_KEYS) -> Sequence[int]:
    """Return a few of some numbers, from the whole range."""
    return values if len(values) <= most else [values[at * len(values) // most] for at in range(most)]


def _name(key: bytes) -> bytes:
    return key[key.rfind(b"/") + 1 :]


def _is_role(name: bytes) -> bool:
    """Tell whether a name, or a suffix, is one that masks, labels and their images usually have."""
    return not _ROLES.isdisjoint(word.lower() for word in _WORD.findall(to_text(name)))


def _call(sources: Sequence[str], **options: object) -> str:
    """Return the call of `create` that packs sources, in the words of who reads."""
    words = [word for name, value in options.items() for word in cli_words(name, value)]
    typed = " ".join(["shardtool create", *map(quote, sources), "OUTPUT", *map(quote, words)])
    shown = [repr(sources[0] if len(sources) == 1 else [*sources]), "OUTPUT"]
    return choose_text(
        f"create({', '.join([*shown, *(f'{name}={value!r}' for name, value in options.items())])})", typed
    )


def _lacking(tree: _Tree) -> str:
    """Return how many samples lack which fields."""
    count = len(tree.entries)
    uses = [(name, has) for name, has in zip(tree.entries.fields, tree.entries.code_counts(), strict=True) if has]
    least = max(2, _SOME * count)
    lacks = [f"{count - has:,} lack {printable(name)}" for name, has in uses if least <= has < count]
    if not lacks:
        return f"{pluralize(count, 'sample')} with {format_list([printable(name) for name, _ in uses], _SHOWN_FIELDS)} alone"
    return f"of {pluralize(count, 'sample')} {format_list(lacks, _SHOWN_FIELDS)}"


# Names that differ by a suffix: 0001.jpg and 0001_mask.png.


def _find_suffixes(tree: _Tree) -> Advice | None:
    """Find suffixes without which the keys of some samples are those of others, or end in another such suffix."""
    tails = Counter[bytes]()
    for at in tree.sampled:
        name = _name(tree.keys[at])
        tails.update(name[match.start() :] for match in _SUFFIX.finditer(name) if match.start())
    least = max(2, _SOME * len(tree.sampled))
    groups = {
        tail: _some([at for at in tree.sampled if tree.keys[at].endswith(tail)])
        for tail, uses in tails.most_common(_MAX_SUFFIXES)
        if uses >= least
    }
    paired = [tail for tail, group in groups.items() if _pairs(tree, group, tail, b"")]
    if not paired:
        paired = next(([*both] for both in combinations(groups, 2) if _pairs(tree, groups[both[0]], *both)), [])
        paired += [
            tail for tail in groups if paired and tail not in paired and _pairs(tree, groups[tail], tail, paired[0])
        ]
    if not paired:
        return None
    pattern = _pattern(sorted(paired))
    shown = format_list([printable(tail) for tail in sorted(paired)])
    found = f"{_lacking(tree)}; their names differ by {shown}"
    return Advice(found, _call([tree.source], key_pattern=pattern))


def _pairs(tree: _Tree, group: Sequence[int], tail: bytes, other: bytes) -> bool:
    """Tell whether the keys of samples, with another suffix, are keys too, and the files of both no variants of one."""
    stems = [tree.keys[at][: -len(tail)] for at in group]
    partners = [bisect_left(tree.keys, stem + other) for stem in stems]
    hits = [
        (at, partner)
        for at, partner, stem in zip(group, partners, stems, strict=True)
        if _name(stem) and partner < len(tree.keys) and tree.keys[partner] == stem + other
    ]
    if len(hits) < max(1, _MOST * len(group)):
        return False
    return _is_role(tail + other) or tree.endings(at for at, _ in hits).isdisjoint(tree.endings(at for _, at in hits))


def _pattern(tails: Sequence[bytes]) -> str:
    """Return the pattern of keys without suffixes."""
    separator = tails[0][:1]
    shared = separator if all(tail[:1] == separator for tail in tails) else b""
    texts = [re.escape(to_text(tail[len(shared) :])).replace(r"\-", "-") for tail in tails]
    between = re.escape(to_text(shared)).replace(r"\-", "-")
    return f"(.+){between}{texts[0] if len(texts) == 1 and shared else '(' + '|'.join(texts) + ')'}"


# Folders next to each other whose files share their names: images/0001.jpg and labels/0001.txt, for each split or not.


class _Folder(NamedTuple):
    """A folder: its path, ending in a slash, and the numbers of the samples in it."""

    path: bytes
    low: int
    high: int

    @property
    def name(self) -> bytes:
        """Its name."""
        return _name(self.path[:-1])


def _folders_in(tree: _Tree, above: _Folder) -> list[_Folder]:
    """Return the folders that are directly in one; none if there are many, as of classes, or many files."""
    found, at, stray = list[_Folder](), above.low, 0
    while at < above.high:
        name, slash, _ = tree.keys[at][len(above.path) :].partition(b"/")
        if not slash:
            at, stray = at + 1, stray + 1
            if stray > _MAX_STRAY_FILES:
                return []
            continue
        path = above.path + name + b"/"
        end = bisect_left(tree.keys, path[:-1] + b"0", at, above.high)  # "0" follows "/"
        found.append(_Folder(path, at, end))
        if len(found) > _MAX_FOLDERS:
            return []
        at = end
    return found


def _top_folders(tree: _Tree) -> list[_Folder]:
    """Return the first folders, from above, that are not alone in theirs."""
    folders = [_Folder(b"", 0, len(tree.keys))]
    for _ in range(_MAX_DEPTH):
        inner = _folders_in(tree, folders[0])
        if len(inner) != 1:
            return inner
        folders = inner
    return []


def _find_siblings(tree: _Tree) -> Advice | None:
    """Find folders whose files are parts of the same samples."""
    tops = _top_folders(tree)
    if not tops:
        return None
    if group := _siblings(tree, tops):
        command = _call([tree.inside(one.path) for one in group])
        return Advice(_of_folders(tree, [one.name for one in group]), command)
    inner = {top.name: _siblings(tree, _folders_in(tree, top)) for top in tops}
    groups = {name: [one.name for one in group] for name, group in inner.items() if group}
    names = next(iter(groups.values()), [])
    if not names or any(group != names for group in groups.values()):
        return None
    above = tree.inside(tops[0].path[: -len(tops[0].name) - 1]) if tops[0].path.count(b"/") > 1 else tree.inside()
    found = _of_folders(tree, names)
    if len(groups) == 1:
        return Advice(found, _call([tree.inside(*one.path.split(b"/")) for one in next(filter(None, inner.values()))]))
    shown = " ".join(quote(to_text(name)) for name in groups)
    sources = " ".join(f'{quote(above)}/"$split"/{quote(to_text(name))}' for name in names)
    command = f"for split in {shown}; do shardtool create {sources} out/\"$split\"-'{{000000..}}'.tar; done"
    return Advice(found, command)


def _of_folders(tree: _Tree, names: Sequence[bytes]) -> str:
    return f"{_lacking(tree)}; files in {format_list([printable(name) for name in names])} share their names"


def _siblings(tree: _Tree, folders: Sequence[_Folder]) -> list[_Folder]:
    """Return the folders that have parts of the same samples; none, as of classes and of splits, if none do."""
    parts = [one for one in folders if to_text(one.name).lower() not in SPLIT_NAMES]
    largest = max(parts, key=lambda one: one.high - one.low, default=None)
    if largest is None:
        return []
    found = [one for one in parts if one is largest or _are_parts(tree, one, largest)]
    return found if len(found) > 1 else []


def _are_parts(tree: _Tree, one: _Folder, other: _Folder) -> bool:
    """Tell whether the files of a folder have partners in a larger one, and the two are not two classes."""
    hits = []
    group = _some(range(one.low, one.high))
    for at in group:
        key = other.path + tree.keys[at][len(one.path) :]
        partner = bisect_left(tree.keys, key, other.low, other.high)
        if partner < other.high and tree.keys[partner] == key:
            hits.append((at, partner))
    if len(hits) < max(1, _MOST * len(group)):
        return False
    known = _is_role(one.name) or _is_role(other.name)
    return known or tree.kinds(at for at, _ in hits).isdisjoint(tree.kinds(at for _, at in hits))


# Files that are packed themselves: tables with a row for each sample, and archives.


def _files_of(tree: _Tree, codes: Sequence[int], most: int) -> list[bytes]:
    """Return the paths of the first files with some fields."""
    import numpy as np

    rows = np.flatnonzero(np.isin(tree.entries.rows.code, codes))[:most].tolist()
    return [tree.entries.path(row) for row in rows]


def _find_packed(tree: _Tree) -> Advice | None:
    """Find a folder of Parquet, JSON-lines or zip files."""
    counts = tree.entries.code_counts()
    for what, endings in _PACKED.items():
        codes = [code for code, name in enumerate(tree.entries.fields) if counts[code] and _packed_as(name) in endings]
        total = sum(counts[code] for code in codes)
        if total * 2 <= len(tree.entries.rows.code):
            continue
        found = f"{total:,} {what} {'file' if total == 1 else 'files'}, each packed as a sample"
        paths = _files_of(tree, codes, _TESTED_KEYS)
        folders = {path[: path.rfind(b"/") + 1] for path in paths}
        depths = {path.count(b"/") for path in paths}
        if len(codes) > 1 or len(depths) > 1:
            return Advice(found, "", _PAGES[what])
        place = _Packed(b"*/" * depths.pop() if len(folders) > 1 else folders.pop(), _name(paths[0]).partition(b".")[2])
        if what == "zip":
            return Advice(found, _of_archives(tree, place), "packs the files in them")
        return _of_tables(tree, found, paths[0], place)
    return None


def _packed_as(field: str) -> str:
    """Return the ending of a table or a zip."""
    return ".zip" if f".{field.lower()}".endswith(".zip") else table_ending(f"x.{field}")


class _Packed(NamedTuple):
    """Where tables or archives are: a folder, or a star for each level of several, and their ending."""

    folder: bytes
    ending: bytes

    @property
    def is_one_folder(self) -> bool:
        """Whether all are in the same folder."""
        return not self.folder.startswith(b"*")


def _glob(tree: _Tree, place: _Packed) -> str:
    """Return a glob of files for a shell."""
    folder = place.folder if place.is_one_folder else b""
    return f"{quote(tree.inside(folder))}/{to_text(place.folder.removeprefix(folder))}*.{quote(to_text(place.ending))}"


def _of_archives(tree: _Tree, place: _Packed) -> str:
    """Return what packs each archive as its files, and then all as one dataset."""
    name = f'"$(basename "$zip" .{to_text(place.ending)})"'
    each = f"shardtool create \"$zip\" parts/{name}-'{{000000..}}'.tar"
    return f"for zip in {_glob(tree, place)}; do {each}; done; shardtool reshard 'parts/*.json' OUTPUT"


def _of_tables(tree: _Tree, found: str, first: bytes, place: _Packed) -> Advice:
    """Return what packs the rows of tables."""
    from shardtool.source.table_head import options_of_rows

    options, has_paths = options_of_rows(tree.inside(first))
    if place.ending != PARQUET_ENDING[1:].encode():
        rows = f"rows.{to_text(place.ending)}"
        if has_paths and place.is_one_folder:
            options["root"] = tree.inside(place.folder)
        return Advice(found, f"cat {_glob(tree, place)} > {rows} && {_typed_call([rows], options)}", _ROWS)
    if not place.is_one_folder:
        return Advice(found, "", _PAGES["Parquet"])
    return Advice(found, _call([f"{tree.inside(place.folder)}/*{PARQUET_ENDING}"], **options), _ROWS)


def _typed_call(sources: Sequence[str], options: Mapping[str, object]) -> str:
    """Return a call of `create` on the command line, whoever reads: it goes on from a command of the shell."""
    words = [word for name, value in options.items() for word in cli_words(name, value)]
    return " ".join(["shardtool create", *map(quote, sources), "OUTPUT", *map(quote, words)])


# Transcripts of LibriSpeech, and a table next to media.


def _find_transcripts(tree: _Tree) -> Advice | None:
    """Find clips whose transcripts are lines of one file for each folder."""
    counts = dict(zip(tree.entries.fields, tree.entries.code_counts(), strict=True))
    files = counts.get(_TRANSCRIPTS, 0)
    clips = sum(count for name, count in counts.items() if name.lower() in _AUDIO)
    if not files or clips < files or address.is_url(tree.source):
        return None
    where = f"{files:,} *.{_TRANSCRIPTS} file{'s' * (files > 1)}"
    found = f"{pluralize(clips, 'sample')} lack txt; their transcripts are lines of {where}"
    lines = f"(cd {quote(tree.inside())} && find . -name '*.{_TRANSCRIPTS}' -exec grep -H . {{}} +)"
    rows = r"sed -E 's|^\./||; s|[^/:]*:([^ ]+) |\1\t|' > transcripts.tsv"
    options = {"join": "transcripts.tsv", "no_header": True, "on": "1", "values": {"txt": "2"}}
    joined = _typed_call([tree.source], {**options, "exclude": (f"*.{_TRANSCRIPTS}",)})
    return Advice(found, f"{lines} | {rows} && {joined}")


def _find_table(tree: _Tree) -> Advice | None:
    """Find the one table next to media."""
    counts = tree.entries.code_counts()
    tables, media = [], 0
    for code, field in enumerate(tree.entries.fields):
        if table_ending(f"x.{field}") and counts[code] <= _MAX_TABLES:
            tables.append(code)
        elif field.rpartition(".")[2].lower() in _MEDIA:
            media += counts[code]
    if not tables or media < _MOST * (len(tree.entries.rows.code) - len(tables)):
        return None
    at_top = [path for path in _files_of(tree, tables, _MAX_TABLES * len(tables)) if b"/" not in path]
    if len(at_top) != 1:
        return None
    from shardtool.source.table_head import head_of, matching_column

    name = at_top[0]
    if (head := head_of(tree.inside(name))) is None:
        return None
    folders = _folders_in(tree, _Folder(b"", 0, len(tree.keys)))
    for root in (b"", *(one.path for one in folders)):
        if match := matching_column(head, tree.has_file, tree.has, root):
            break
    else:
        return None
    found = f"{pluralize(len(tree.entries) - 1, 'sample')} lack the columns of {printable(name)}, which is packed as a sample"
    if match.as_source:
        options = {**({"root": tree.inside(root)} if root else {}), **match.options}
        return Advice(found, _call([tree.inside(name)], **options))
    excluded = {} if root else {"exclude": (to_text(name),)}
    options = {"join": tree.inside(name), **match.options, **excluded}
    return Advice(found, _call([tree.inside(root)], **options))


_FINDERS = (_find_packed, _find_suffixes, _find_siblings, _find_transcripts, _find_table)
