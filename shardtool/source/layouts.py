"""Recognise folders in which the files of one sample have different names, and suggest a command.

Examples are masks with a suffix, `images/` next to `labels/`, and a table next to images.
"""

from __future__ import annotations

import os
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
    from shardtool.source.table_head import Match

# Inspect runs of adjacent keys, because adjacent files often belong to one sample.
SAMPLED_KEYS, _RUN_LENGTH = 512, 16
_TESTED_KEYS = 64
_MIN_PARTNER_SHARE = 0.8
_MIN_GROUP_SHARE = 0.05
_MAX_FOLDERS = 8  # if a folder has more subfolders, they are probably classes
_MAX_STRAY_FILES = 64
_MAX_DEPTH = 4
_MAX_SUFFIXES = 6
_MAX_TABLES = 10
_SHOWN_FIELDS = 3
_MIN_CLASS_IMAGES = 2
_SUFFIX = re.compile(rb"[_\-. ](?=[A-Za-z])")
_DOT = re.compile(rb"\.")
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
_TRANSCRIPTS = "trans.txt"  # LibriSpeech's transcripts, with one line per audio clip


class Advice(NamedTuple):
    """An observation about a folder, and the command that probably packs it as the user wants.

    `effect` describes what `command` does. If one command is not enough, `command` is empty, and `effect` is a
    documentation page.
    """

    found: str
    command: str
    effect: str = "pairs them"

    def __str__(self) -> str:
        return f"{self.found}: `{self.command}` {self.effect}" if self.command else f"{self.found}: see {self.effect}"


class _Tree(NamedTuple):
    entries: SampleTable
    source: str
    sampled: list[int]

    @property
    def keys(self) -> Sequence[bytes]:
        return cast("Sequence[bytes]", self.entries.keys)

    def find(self, key: bytes) -> int | None:
        sample = bisect_left(self.keys, key)
        return sample if sample < len(self.keys) and self.keys[sample] == key else None

    def has(self, key: bytes) -> bool:
        return self.find(key) is not None

    def has_file(self, path: bytes) -> bool:
        for match in _DOT.finditer(path, path.rfind(b"/") + 1):
            if (sample := self.find(path[: match.start()])) is not None:
                return path[match.end() :] in self.fields(sample)
        return False

    def fields(self, sample: int) -> set[bytes]:
        first, last = self.entries.first_rows[sample : sample + 2].tolist()
        return {to_bytes(self.entries.fields[code]) for code in self.entries.rows.code[first:last].tolist()}

    def endings(self, samples: Iterable[int]) -> set[str]:
        return {to_text(name).rpartition(".")[2].lower() for sample in samples for name in self.fields(sample)}

    def kinds(self, samples: Iterable[int]) -> set[str]:
        return {"image" if ending in IMAGE_ENDINGS else ending for ending in self.endings(samples)}

    def inside(self, *names: bytes) -> str:
        path = self.source.rstrip("/") or "/"
        for name in filter(None, b"/".join(names).split(b"/")):
            path = paths.join(path, to_text(name))
        return path


def find_layout(entries: SampleTable, source: str, *, is_archive: bool = False) -> Advice | None:
    """Return advice if files that probably belong to one sample have different keys.

    For an archive, check only suffixes of file names.
    """
    count = len(entries)
    if count < 2:  # noqa: PLR2004 - a pair
        return None
    tree = _Tree(entries, source, _spread(count))
    finders = (_find_suffixes,) if is_archive else _FINDERS
    return next(filter(None, (find(tree) for find in finders)), None)


def _spread(count: int) -> list[int]:
    if count <= SAMPLED_KEYS:
        return [*range(count)]
    runs = SAMPLED_KEYS // _RUN_LENGTH
    return [run * (count - _RUN_LENGTH) // (runs - 1) + offset for run in range(runs) for offset in range(_RUN_LENGTH)]


def _sample_evenly(values: Sequence[int], max_count: int = _TESTED_KEYS) -> Sequence[int]:
    count = len(values)
    return values if count <= max_count else [values[index * count // max_count] for index in range(max_count)]


def _parent_folder(path: bytes) -> bytes:
    return path[: path.rfind(b"/") + 1]


def _file_name(path: bytes) -> bytes:
    return path[path.rfind(b"/") + 1 :]


def _is_role(name: bytes) -> bool:
    return not _ROLES.isdisjoint(word.lower() for word in _WORD.findall(to_text(name)))


def _option_words(options: Mapping[str, object]) -> list[str]:
    return [quote(word) for name, value in options.items() for word in cli_words(name, value)]


def _create_command(sources: Sequence[str], options: Mapping[str, object]) -> str:
    return " ".join(["shardtool create", *map(quote, sources), "OUTPUT", *_option_words(options)])


def _create_each_split(splits: Iterable[bytes], sources: Iterable[str], options: Iterable[str] = ()) -> str:
    names = " ".join(quote(to_text(name)) for name in splits)
    command = " ".join([*sources, "out/\"$split\"-'{000000..}'.tar", *options])
    return f"for split in {names}; do shardtool create {command}; done"


def _create_call(sources: Sequence[str], **options: object) -> str:
    arguments = [repr(sources[0] if len(sources) == 1 else [*sources]), "OUTPUT"]
    arguments += [f"{name}={value!r}" for name, value in options.items()]
    return choose_text(f"create({', '.join(arguments)})", _create_command(sources, options))


def _lacking_text(tree: _Tree) -> str:
    count = len(tree.entries)
    counts = [(name, uses) for name, uses in zip(tree.entries.fields, tree.entries.code_counts(), strict=True) if uses]
    min_count = max(2, _MIN_GROUP_SHARE * count)
    lacks = [(count - uses, printable(name)) for name, uses in counts if min_count <= uses < count]
    if not lacks:
        fields = format_list([printable(name) for name, _ in counts], _SHOWN_FIELDS)
        return f"{pluralize(count, 'sample')} with only {fields}"
    (lacking, name), *others = lacks
    texts = [f"{lacking:,} of {pluralize(count, 'sample')} lack {name}"]
    return format_list([*texts, *(f"{lacking:,} lack {name}" for lacking, name in others)], _SHOWN_FIELDS)


def _find_suffixes(tree: _Tree) -> Advice | None:
    suffixes = Counter[bytes]()
    for sample in tree.sampled:
        name = _file_name(tree.keys[sample])
        suffixes.update(name[match.start() :] for match in _SUFFIX.finditer(name) if match.start())
    min_count = max(2, _MIN_GROUP_SHARE * len(tree.sampled))
    groups = {
        suffix: _sample_evenly([sample for sample in tree.sampled if tree.keys[sample].endswith(suffix)])
        for suffix, uses in suffixes.most_common(_MAX_SUFFIXES)
        if uses >= min_count
    }
    paired = [suffix for suffix, group in groups.items() if _has_partners(tree, group, suffix, b"")]
    if not paired:
        pairs = combinations(groups, 2)
        first_pair = next((pair for pair in pairs if _has_partners(tree, groups[pair[0]], *pair)), None)
        if first_pair is None:
            return None
        others = [suffix for suffix in groups if suffix not in first_pair]
        paired = [suffix for suffix in others if _has_partners(tree, groups[suffix], suffix, first_pair[0])]
        paired += first_pair
    pattern = _suffix_pattern(sorted(paired))
    shown = format_list([printable(suffix) for suffix in sorted(paired)])
    found = f"{_lacking_text(tree)}; the file names differ only by {shown}"
    return Advice(found, _create_call([tree.source], key_pattern=pattern))


def _has_partners(tree: _Tree, group: Sequence[int], suffix: bytes, partner_suffix: bytes) -> bool:
    stems = [tree.keys[sample][: -len(suffix)] for sample in group]
    pairs = [
        (sample, partner)
        for sample, stem in zip(group, stems, strict=True)
        if _file_name(stem) and (partner := tree.find(stem + partner_suffix)) is not None
    ]
    if len(pairs) < max(1, _MIN_PARTNER_SHARE * len(group)):
        return False
    return _is_role(suffix + partner_suffix) or tree.endings(sample for sample, _ in pairs).isdisjoint(
        tree.endings(sample for _, sample in pairs)
    )


def _suffix_pattern(suffixes: Sequence[bytes]) -> str:
    separator = suffixes[0][:1]
    shared = separator if all(suffix[:1] == separator for suffix in suffixes) else b""
    texts = [re.escape(to_text(suffix[len(shared) :])).replace(r"\-", "-") for suffix in suffixes]
    between = re.escape(to_text(shared)).replace(r"\-", "-")
    return f"(.+){between}{texts[0] if len(texts) == 1 and shared else '(' + '|'.join(texts) + ')'}"


class _Folder(NamedTuple):
    path: bytes
    low: int
    high: int

    @property
    def name(self) -> bytes:
        return _file_name(self.path[:-1])


def _folders_in(tree: _Tree, parent: _Folder) -> list[_Folder]:
    folders = list[_Folder]()
    sample, stray_files = parent.low, 0
    while sample < parent.high:
        name, slash, _ = tree.keys[sample][len(parent.path) :].partition(b"/")
        if not slash:
            sample, stray_files = sample + 1, stray_files + 1
            if stray_files > _MAX_STRAY_FILES:
                return []
            continue
        path = parent.path + name + b"/"
        end = bisect_left(tree.keys, path[:-1] + b"0", sample, parent.high)  # "0" is the byte after "/"
        folders.append(_Folder(path, sample, end))
        if len(folders) > _MAX_FOLDERS:
            return []
        sample = end
    return folders


def _top_folders(tree: _Tree) -> list[_Folder]:
    folders = [_Folder(b"", 0, len(tree.keys))]
    for _ in range(_MAX_DEPTH):
        inner = _folders_in(tree, folders[0])
        if len(inner) != 1:
            return inner
        folders = inner
    return []


def _find_siblings(tree: _Tree) -> Advice | None:
    if not (tops := _top_folders(tree)):
        return None
    if group := _related_folders(tree, tops):
        command = _create_call([tree.inside(folder.path) for folder in group])
        return Advice(_folders_text(tree, [folder.name for folder in group]), command)
    inner = {top.name: _related_folders(tree, _folders_in(tree, top)) for top in tops}
    groups = {name: [folder.name for folder in group] for name, group in inner.items() if group}
    names = next(iter(groups.values()), [])
    if not names or any(group != names for group in groups.values()):
        return None
    parent = tree.inside(tops[0].path[: -len(tops[0].name) - 1]) if tops[0].path.count(b"/") > 1 else tree.inside()
    found = _folders_text(tree, names)
    if len(groups) == 1:
        folders = next(filter(None, inner.values()))
        return Advice(found, _create_call([tree.inside(folder.path) for folder in folders]))
    sources = [f'{quote(parent)}/"$split"/{quote(to_text(name))}' for name in names]
    return Advice(found, _create_each_split(groups, sources))


def _folders_text(tree: _Tree, names: Sequence[bytes]) -> str:
    return f"{_lacking_text(tree)}; files in {format_list([printable(name) for name in names])} have the same names"


def _related_folders(tree: _Tree, folders: Sequence[_Folder]) -> list[_Folder]:
    candidates = [folder for folder in folders if to_text(folder.name).lower() not in SPLIT_NAMES]
    largest = max(candidates, key=lambda folder: folder.high - folder.low, default=None)
    if largest is None:
        return []
    siblings = [folder for folder in candidates if folder is largest or _share_samples(tree, folder, largest)]
    return siblings if len(siblings) > 1 else []


def _share_samples(tree: _Tree, folder: _Folder, larger: _Folder) -> bool:
    group = _sample_evenly(range(folder.low, folder.high))
    partners = [tree.find(larger.path + tree.keys[sample][len(folder.path) :]) for sample in group]
    pairs = [(sample, partner) for sample, partner in zip(group, partners, strict=True) if partner is not None]
    if len(pairs) < max(1, _MIN_PARTNER_SHARE * len(group)):
        return False
    has_role = _is_role(folder.name) or _is_role(larger.name)
    return has_role or tree.kinds(sample for sample, _ in pairs).isdisjoint(tree.kinds(sample for _, sample in pairs))


def _files_with(tree: _Tree, codes: Sequence[int], max_count: int) -> list[bytes]:
    import numpy as np

    rows = np.flatnonzero(np.isin(tree.entries.rows.code, codes))[:max_count].tolist()
    return [tree.entries.path(row) for row in rows]


def _find_packed(tree: _Tree) -> Advice | None:
    counts = tree.entries.code_counts()
    for kind, endings in _PACKED.items():
        codes = [code for code, name in enumerate(tree.entries.fields) if counts[code] and _packed_as(name) in endings]
        total = sum(counts[code] for code in codes)
        if total * 2 <= len(tree.entries.rows.code):
            continue
        found = f"{total:,} {kind} {'file' if total == 1 else 'files'}, each packed as one sample"
        paths = _files_with(tree, codes, _TESTED_KEYS)
        folders = {_parent_folder(path) for path in paths}
        depths = {path.count(b"/") for path in paths}
        if len(codes) > 1 or len(depths) > 1:
            return Advice(found, "", _PAGES[kind])
        folder = b"*/" * depths.pop() if len(folders) > 1 else folders.pop()
        location = _Packed(folder, _file_name(paths[0]).partition(b".")[2])
        if kind == "zip":
            return Advice(found, _archives_command(tree, location), "packs the files in them")
        return _tables_advice(tree, found, paths[0], location)
    return None


def _packed_as(field: str) -> str:
    return ".zip" if f".{field.lower()}".endswith(".zip") else table_ending(f"x.{field}")


class _Packed(NamedTuple):
    folder: bytes
    ending: bytes

    @property
    def is_one_folder(self) -> bool:
        return not self.folder.startswith(b"*")


def _archives_command(tree: _Tree, location: _Packed) -> str:
    folder = location.folder if location.is_one_folder else b""
    ending = to_text(location.ending)
    archives = f"{quote(tree.inside(folder))}/{to_text(location.folder.removeprefix(folder))}*.{quote(ending)}"
    create = f'shardtool create "$zip" parts/"$(basename "$zip" .{ending})"' + "-'{000000..}'.tar"
    return f"for zip in {archives}; do {create}; done; shardtool reshard 'parts/*.json' OUTPUT"


def _tables_advice(tree: _Tree, found: str, first: bytes, location: _Packed) -> Advice:
    from shardtool.source.table_head import row_packing_options

    options, has_paths = row_packing_options(tree.inside(first))
    if has_paths and location.is_one_folder:
        options["root"] = tree.inside(location.folder)
    if not location.is_one_folder:
        return Advice(found, "", _PAGES["Parquet"])
    return Advice(
        found, _create_call([f"{tree.inside(location.folder)}/*.{to_text(location.ending)}"], **options), _ROWS
    )


def _find_transcripts(tree: _Tree) -> Advice | None:
    counts = dict(zip(tree.entries.fields, tree.entries.code_counts(), strict=True))
    files = counts.get(_TRANSCRIPTS, 0)
    clips = sum(count for name, count in counts.items() if name.lower() in _AUDIO)
    if not files or clips < files or address.is_url(tree.source):
        return None
    where = f"{files:,} *.{_TRANSCRIPTS} {'file' if files == 1 else 'files'}"
    found = f"{pluralize(clips, 'sample')} lack txt; the transcripts are in {where}"
    lines = f"(cd {quote(tree.inside())} && find . -name '*.{_TRANSCRIPTS}' -exec grep -H . {{}} +)"
    rows = r"sed -E 's|^\./||; s|[^/:]*:([^ ]+) |\1\t|' > transcripts.tsv"
    options = {"join": "transcripts.tsv", "no_header": True, "on": "1", "field": {"txt": "2"}}
    joined = _create_command([tree.source], {**options, "exclude": (f"*.{_TRANSCRIPTS}",)})
    return Advice(found, f"{lines} | {rows} && {joined}")


def _find_table(tree: _Tree) -> Advice | None:
    counts = tree.entries.code_counts()
    table_codes, media_files = [], 0
    for code, field in enumerate(tree.entries.fields):
        if table_ending(f"x.{field}") and counts[code] <= _MAX_TABLES:
            table_codes.append(code)
        elif field.rpartition(".")[2].lower() in _MEDIA:
            media_files += counts[code]
    tables = _files_with(tree, table_codes, _MAX_TABLES * len(table_codes)) if table_codes else []
    if not tables or media_files < _MIN_PARTNER_SHARE * (len(tree.entries.rows.code) - len(tables)):
        return None
    at_top = [path for path in tables if b"/" not in path]
    in_splits = [path for path in tables if _is_split(path)]
    if len(in_splits) < 2 or len({_parent_folder(path) for path in in_splits}) > 1:  # noqa: PLR2004 - two splits
        in_splits = tables if len(tables) == 1 else []
    if chosen := at_top if len(at_top) == 1 else in_splits:
        return _advise_table(tree, chosen)
    if (advice := _find_split_annotations(tree, tables)) is not None:
        return advice
    folders = [path.rpartition(b"/")[0] for path in tables]
    if len({*map(_file_name, tables)}) == 1 and len({*folders}) > 1 and all(map(_is_split, folders)):
        return _advise_split_folders(tree, tables)
    return None


def _is_split(path: bytes) -> bool:
    return to_text(_file_name(path)).partition(".")[0].lower() in SPLIT_NAMES


def _match_table(tree: _Tree, table: bytes) -> tuple[bytes, Match | None]:
    """Return the folder to which the table's paths are relative, and the options to pack the table."""
    from shardtool.source.table_head import matching_column, read_table_head

    if (head := read_table_head(tree.inside(table))) is None:
        return b"", None
    folders = _folders_in(tree, _Folder(b"", 0, len(tree.keys)))
    folders += [inner for folder in folders for inner in _folders_in(tree, folder)]
    roots = dict.fromkeys((_parent_folder(table), b"", *(folder.path for folder in folders)))
    matches = ((root, matching_column(head, tree.has_file, tree.has, root)) for root in roots)
    return next(((root, match) for root, match in matches if match), (b"", None))


def _lacking_columns_text(tree: _Tree, tables: Sequence[bytes], names: str) -> str:
    return f"{pluralize(len(tree.entries) - len(tables), 'sample')} lack the columns of {names}"


def _advise_table(tree: _Tree, tables: Sequence[bytes]) -> Advice | None:
    root, match = _match_table(tree, tables[0])
    if match is None:
        return None
    names = [printable(name) for name in tables]
    if len(tables) > 1:
        found = f"{_lacking_columns_text(tree, tables, format_list(names))}, which are packed as separate samples"
        if not match.as_source:
            return Advice(found, "", _PAGES["Parquet"])
        options = {"root": tree.inside(root), **match.options, "split_by": "file"}
        command = _create_call([tree.inside(name) for name in tables], **options)
        return Advice(found, command.replace("OUTPUT", "'out/{split}-{000000..}.tar'"))
    found = f"{_lacking_columns_text(tree, tables, names[0])}, which is packed as a separate sample"
    folder = _parent_folder(tables[0])
    if match.as_source:
        options = {**({"root": tree.inside(root)} if root != folder else {}), **match.options}
        return Advice(found, _create_call([tree.inside(tables[0])], **options))
    excluded = {"exclude": (to_text(_file_name(tables[0])),)} if folder.startswith(root) else {}
    options = {"join": tree.inside(tables[0]), **match.options, **excluded}
    return Advice(found, _create_call([tree.inside(root)], **options))


def _find_split_annotations(tree: _Tree, tables: Sequence[bytes]) -> Advice | None:
    names = [folder.path[:-1] for folder in _folders_in(tree, _Folder(b"", 0, len(tree.keys)))]
    prefixes: dict[tuple[bytes, bytes], list[bytes]] = {}
    for name, table in ((name, table) for name in names for table in tables):
        stem, ending = table.rsplit(b".", 1)
        if stem.endswith(b"_" + name):
            prefixes.setdefault((stem.removesuffix(name), ending), []).append(name)
    if not prefixes:
        return None
    prefix, ending = max(prefixes, key=lambda key: (_file_name(key[0]) == b"instances_", len(prefixes[key])))
    splits = prefixes[prefix, ending]
    root, match = _match_table(tree, prefix + splits[0] + b"." + ending)
    if match is None or root != splits[0] + b"/" or match.as_source:
        return None
    found = _lacking_columns_text(tree, tables, f"{printable(prefix)}*")
    folder = f'{quote(tree.inside())}/"$split"'
    annotations = f'{quote(tree.inside(prefix))}"$split".{to_text(ending)}'
    options = [*cli_words("join", annotations), *_option_words(match.options)]
    return Advice(found, _create_each_split(splits, [folder], options))


def _advise_split_folders(tree: _Tree, tables: Sequence[bytes]) -> Advice | None:
    folder, name = _parent_folder(tables[0]), _file_name(tables[0])
    root, match = _match_table(tree, tables[0])
    if match is None or not match.as_source or root != folder:
        return None
    parent = _parent_folder(folder[:-1])
    splits = [_file_name(table.rpartition(b"/")[0]) for table in tables]
    shown = " ".join(quote(to_text(split)) for split in splits)
    found = _lacking_columns_text(tree, tables, f"{printable(name)} in {shown}")
    source = f'{quote(tree.inside(parent))}/"$split"/{quote(to_text(name))}'
    return Advice(found, _create_each_split(splits, [source, *_option_words(match.options)]))


_FINDERS = (_find_packed, _find_suffixes, _find_siblings, _find_transcripts, _find_table)


def find_classes(entries: SampleTable, source: str) -> Advice | None:
    """Return advice if there are only images, and the folders are probably classes or splits."""
    tree = _Tree(entries, source, _spread(len(entries)))
    if tree.kinds(tree.sampled) != {"image"}:
        return None
    keys = [tree.keys[sample] for sample in tree.sampled]
    shared = cast("bytes", os.path.commonprefix(keys))  # noqa: RUF071 - cut at a slash in the next line
    parent = _parent_folder(shared)
    tops = [key[len(parent) :].partition(b"/")[:2] for key in keys]
    names = [*dict.fromkeys(name for name, _ in tops)]
    if not all(slash for _, slash in tops) or len(names) * _MIN_CLASS_IMAGES > len(keys):
        return None
    if any(map(bytes.isdigit, names)):
        return None
    shown = ", ".join(printable(name) for name in names[:_SHOWN_FIELDS])
    found = f"{pluralize(len(entries), 'sample')} in folders such as {shown}"
    inside = tree.inside(parent)
    if all(map(_is_split, names)):
        command = _create_call([inside], split_by="folder")
        return Advice(found, command.replace("OUTPUT", "'out/{split}-{000000..}.tar'"), "packs each as a split")
    return Advice(found, _create_call([inside], label_from_folder=True), "also stores them as class numbers")
