"""Which finished shards are meant.

A dataset is given as its dataset file, a shard pattern, a glob, a folder, or a list of shards, each as a path or an
address; on the web nothing can be listed, so that a range must have its end. Nothing that such a name or a dataset
file says makes us read outside of the folder that the user named.

A range and a glob mean those of the shards that are there, or that a dataset file beside them lists, which have such a
name. So a shard that was lost is one of them, and is missed as it is where the dataset file was given.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from shardtool import pattern as patterns
from shardtool.dataset.dataset_file import (
    listed_beside,
    listed_shards,
    may_be_own,
    read_dataset,
    shard_names,
    sound_dataset,
)
from shardtool.dataset.shard_file import FETCH, SurveyTask, looks_like, shard_kind, survey
from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, listing, printable, reason
from shardtool.pattern import DATASET_SUFFIX, ShardPattern, is_shard_name, parse_pattern, read_name
from shardtool.storage import places
from shardtool.storage.places import base_name, folder_of, for_each, is_file, is_folder, is_url, is_web, join, names_in
from shardtool.values import SPLIT_NAMES, Dots, Given, counted, given_names, output_text
from shardtool.wording import create_again, either

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
    from shardtool.dataset.shard_file import Survey
    from shardtool.dataset.shard_index import ShardFact, ShardIndex
    from shardtool.request.run_record import RunRecord

Value = TypeVar("Value")

_NUMBER = re.compile(r"(\d+)", re.ASCII)  # other digits, such as superscripts, are letters to `int`
_WORD = re.compile(r"[a-z]+")
_MOST_MISSING = 1000  # names
_LOOKED_AT = 8  # files of a series: some may be empty
_MARKS = "{<%"  # of a range in a pattern
_GLOB = "*?["
_PRINTF = re.compile(r"%\d*d", re.ASCII)
_NUMBERED = re.compile(r"(.*?)([0-9]+)(\.[^0-9{<%]+)", re.DOTALL)  # a shard: what is before its number, and behind
EXPECTED = "a dataset file, a shard pattern, a glob, a folder, or shards"
_EXPECTED_WEB = "a dataset file (NAME.json), a shard, or a pattern with its end, such as out-{000000..000041}.tar"


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A shard on disk, in a store, or on the web. Nothing is kept of it but names; what is asked is read anew.

    Attributes:
        path: Its path.
        number: Its place in its dataset, counted from 0.
        dots: Where keys end in its members' names.
        index_folder: Where its sidecar lies; None: beside it.
        entry: What the dataset file says of it; None where none of ours does.
    """

    path: str
    number: int = 0
    dots: Dots = "first"
    index_folder: str | None = None
    entry: ShardEntry | None = None

    @property
    def file_name(self) -> str:
        """Its file name."""
        return base_name(self.path)

    @property
    def name(self) -> str:
        """Its file name, as outputs have it."""
        return output_text(self.file_name)

    @property
    def sidecar(self) -> str:
        """The path of its sidecar, which need not be there."""
        return sidecar_path(self.path, self.index_folder)

    @property
    def format(self) -> str:
        """`tar` or `tfrecord`."""
        return shard_kind(self.path).format

    @property
    def packed(self) -> bool:
        """Whether it is compressed."""
        return bool(shard_kind(self.path).packing)

    def size(self) -> int | None:
        """Return its bytes; None where it is no plain file."""
        return places.plain_size(self.path)

    def survey(self, *, checksum: bool = False) -> Survey:
        """Return what a walk over it finds, with checksums where payloads are to be read, too.

        Raises:
            CorruptShard: It cannot be opened.
            InvalidRequest: Its name has the ending of no format.
        """
        return survey(SurveyTask(self.path, checksum, self.dots))

    def index(self, *, metadata: bool = False) -> ShardIndex:
        """Return where its samples lie, as its sidecar says or, where there is no sound one, a walk finds.

        Args:
            metadata: Whether the sidecar's other columns are wanted, too.

        Raises:
            CorruptShard: There is no sound sidecar, and the shard cannot be opened.
        """
        from shardtool.dataset.shard_index import ShardIndex, read_bytes, sidecar_of, walked_index

        where, size = self.sidecar, self.size()
        found = self._said(lambda: sidecar_of(read_bytes(where), where, self.name, size, metadata=metadata))
        if isinstance(found, ShardIndex):
            return found
        return replace(walked_index(self.survey()), damage=found)

    def _said(self, read: Callable[[], Value]) -> Value | CorruptShard | None:
        """Return what is read of the sidecar, or what is wrong with it; None where there is none."""
        try:
            return read()
        except FileNotFoundError:
            return None
        except AccessRefused:
            if self.index_folder is None:  # said of what is not there, where we may not list
                return None
            raise
        except OSError as error:
            return CorruptShard(self.sidecar, f"cannot be read: {reason(error)}")
        except CorruptShard as error:
            return error

    def head(self) -> tuple[int, ShardFact] | None:
        """Return how many samples it has, as the footer of its sidecar says, and what that says of it.

        None: there is no sidecar, or one that is damaged or about another shard.
        """
        from shardtool.dataset.shard_index import read_count

        found = self._said(partial(read_count, self.sidecar, self.name, self.size()))
        return found if isinstance(found, tuple) else None

    def schema(self) -> pa.Schema:
        """Return the columns of its sidecar and their types, by the footer alone; of a shard without one, `SCHEMA`."""
        from shardtool.dataset.shard_index import SCHEMA, read_schema

        return SCHEMA if self.head() is None else read_schema(self.sidecar)


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """A dataset on disk, in a store, or on the web.

    Attributes:
        given: What the user named.
        shards: In the order in which they were named; some may not be there.
        dataset_file: The path of the dataset file, which may list other shards, too; None where there is none.
        folder: Where the dataset file lies, and the shards, or folders that hold them; "" is the current folder.
        own: Whether the dataset file is one of ours, damaged or not: then sidecars lie beside it.
        whole: Whether the dataset itself was named: by its file or folder, or by a range that is all of it. Then
            shards that its file does not list are no part of it.
        missing: Names of a range that are neither there nor listed: the first of them.
        file: What the dataset file says of these shards, once it was read; None where there is none of ours.
        unlisted: The paths of further shards, which it does not list.
    """

    given: Given
    shards: tuple[StoredShard, ...] = field(repr=False)
    dataset_file: str | None
    folder: str
    own: bool = False
    whole: bool = False
    missing: tuple[str, ...] = ()
    file: DatasetFile | None = None
    unlisted: tuple[str, ...] = ()

    @property
    def index_folder(self) -> str | None:
        """The folder of all sidecars; None: each lies beside its shard."""
        return self.folder if self.own else None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the shards."""
        return tuple(shard.path for shard in self.shards)

    @property
    def where(self) -> str:
        """Its dataset file or else its folder, for messages."""
        return self.dataset_file or self.folder or "."

    @property
    def split(self) -> str:
        """The split that it is, as its dataset file or else its name says; empty: none."""
        if self.file is not None and self.file.made.split:
            return self.file.made.split
        words = _WORD.findall(base_name(self.dataset_file or self.paths[0]).lower())
        return next((word for word in words if word in SPLIT_NAMES), "")

    def folders(self) -> list[str]:
        """Return the folders of the shards, in order."""
        return list(dict.fromkeys(map(folder_of, self.paths)))

    def read(self) -> StoredDataset:
        """Return it with what the dataset file says of just these shards.

        Of a dataset that was named as a whole, the shards are then those that it lists. Where it does not list all that
        were named one by one, it says nothing of them.

        Raises:
            CorruptShard: It is damaged.
        """
        if self.dataset_file is None or not self.own:
            return self
        file = read_dataset(places.read_small(self.dataset_file), self.dataset_file)
        listed = {one.name for one in file.shards}
        shards = [shard for shard in self.shards if shard.name in listed]
        if not self.whole and len(shards) < len(self.shards):
            return self
        unlisted = tuple(shard.path for shard in self.shards if shard.name not in listed)
        found = replace(self, shards=tuple(shards), unlisted=unlisted)
        return found.with_file(file.part([shard.name for shard in shards]))

    def with_file(self, file: DatasetFile) -> StoredDataset:
        """Return it with what a dataset file says of it."""
        entries = {one.name: one for one in file.shards}
        shards = tuple(
            replace(shard, number=at, dots=file.made.dots, entry=entries.get(shard.name))
            for at, shard in enumerate(self.shards)
        )
        return replace(self, file=file, shards=shards)

    def with_dots(self, dots: Dots) -> StoredDataset:
        """Return it with where keys end in the names of members."""
        return replace(self, shards=tuple(replace(shard, dots=dots) for shard in self.shards))


def _stored(paths: Sequence[str], file: str | None, folder: str, *, own: bool, **more: Any) -> StoredDataset:
    beside = folder if own else None
    shards = tuple(StoredShard(path, at, index_folder=beside) for at, path in enumerate(paths))
    return StoredDataset((), shards, file, folder, own=own, **more)


def sidecar_path(shard: str, folder: str | None) -> str:
    """Return the path of a shard's sidecar, in a folder, or beside the shard where that is None."""
    return join(folder_of(shard) if folder is None else folder, patterns.sidecar_name(base_name(shard)))


def open_dataset(given: Given, *, dots: Dots | None = None) -> StoredDataset:
    """Return a dataset with what its dataset file says, given as that, a pattern, a glob, a folder, or shards.

    Args:
        given: Where it is.
        dots: Where keys end in members' names, if no dataset file says so; None: as sidecars show, which reads them.

    Raises:
        InvalidRequest: There is none.
        CorruptShard: Its dataset file is damaged.
    """
    found = find_dataset(given).read()
    return found if found.file is not None else found.with_dots(dots or recorded_dots(found))


def find_dataset(given: Given, *, lacking: bool = False) -> StoredDataset:
    """Return the shards that `given` means.

    Args:
        given: What the user named.
        lacking: Whether shards of a range may lack that no dataset file lists; `missing` then names them.

    Raises:
        InvalidRequest: There are none, or not all that a range names; or several datasets are in a folder.
        CorruptShard: A dataset file names what is no shard beside it.
    """
    names = given_names("the dataset", given, EXPECTED)
    found = _find(names)
    if found.missing and not lacking:
        what = f"no {listing([*map(printable, found.missing)], 3)}"
        remedy = "Name those that are there: by a range of them, a glob, or the dataset file."
        raise InvalidRequest(names[0], what, expected="all shards of the range", remedy=remedy)
    return replace(found, given=given)


def _find(names: list[str]) -> StoredDataset:
    if not names:
        raise InvalidRequest("the dataset", "nothing given", expected=EXPECTED)
    if len(names) > 1:
        return _of_names(names)
    name = names[0]
    if name.startswith("pipe:") or name == "-":
        remedy = "Its bytes go into a file first; the command line does that for create, reshard, inspect and verify."
        raise InvalidRequest(name, "a command" if name != "-" else "standard input", expected=EXPECTED, remedy=remedy)
    if is_url(name):
        return _at_address(name)
    if not os.path.lexists(name):
        places.refuse_near_url(name)
    if os.path.isdir(name):
        return _of_folder(name)
    if name.endswith(DATASET_SUFFIX):
        return _of_dataset_file(name)
    if os.path.lexists(name) or any(mark in name for mark in _GLOB):
        return _of_names([name]) if os.path.lexists(name) else _of_names(matches(name) or [name], name)
    return _of_pattern(name)


def matches(name: str) -> list[str]:
    """Return what a glob means, in order; in a store, only its last part may be one."""
    if not is_url(name):
        return sorted(glob.glob(name), key=natural)
    folder, last = folder_of(name), base_name(name)
    if is_web(name) or any(mark in folder for mark in _GLOB):
        found = "a glob on the web, where nothing is listed" if is_web(name) else "a glob in a folder's name"
        raise InvalidRequest(name, found, expected=_EXPECTED_WEB if is_web(name) else "one in the name of the shards")
    names = [one for one in places.list_folder(folder) if fnmatchcase(one, last)]
    return [join(folder, one) for one in sorted(names, key=natural)]


def _at_address(name: str) -> StoredDataset:
    """Return the shards that an address means."""
    last = base_name(name)
    if last.endswith(DATASET_SUFFIX):
        return _of_dataset_file(name)
    if any(mark in last for mark in "{<") or (not is_web(name) and _PRINTF.search(last)):
        return _of_pattern(name)
    named = is_shard_name(last)
    if named and is_file(name):
        return _of_names([name])
    if not is_web(name) and is_folder(name):
        return _of_folder(name)
    if any(mark in last for mark in _GLOB) and (found := matches(name)):
        return _of_names(found, name)
    if not named and is_file(name) and looks_like(name):
        return _of_names([name])
    if not is_web(name):
        raise InvalidRequest(name, "no such object, and none below it", expected=EXPECTED)
    what = "no such file" if named else "no shard, and nothing is listed on the web"
    raise InvalidRequest(name, what, expected=_EXPECTED_WEB)


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts `s-9` before `s-10`."""
    return [(int(part), "") if at % 2 else (-1, part) for at, part in enumerate(_NUMBER.split(name))]


def _of_names(names: list[str], text: str = "") -> StoredDataset:
    """Return the shards of these names; of a glob, which is `text`, also those that a dataset file lists."""
    sidecars = {sidecar_path(name, None) for name in names}
    names = [name for name in names if name not in sidecars] or names  # a glob finds them beside `train-00000-of-01024`
    sizes = [*places.plain_sizes(names)]
    for name in names:
        _check_fetched(name)
    if len(names) == 1 and names[0].endswith(DATASET_SUFFIX) and sizes[0] is not None:
        return _of_dataset_file(names[0])
    folder, last = folder_of(names[0]), base_name(text)
    plain = dict.fromkeys(map(base_name, names))
    file, listed = None, list[str]()
    if all(folder_of(name) == folder for name in names):
        there = {base_name(name) for name, size in zip(names, sizes, strict=True) if size is not None}
        file, listed, _ = _dataset_file_of(
            folder, there, usual_names([*plain]),
            lambda names: [name for name in names if name in plain or (text and fnmatchcase(name, last))],
        )  # fmt: skip
    for name, size in zip(names, sizes, strict=True):
        if size is None and base_name(name) not in listed:
            raise InvalidRequest(name, "no such file", expected=EXPECTED, remedy=places.similar_path(name))
    if lost := [join(folder, name) for name in listed if text and name not in plain]:
        names = sorted([*names, *lost], key=natural)
    return _stored(names, file, folder, own=file is not None)


def _check_fetched(path: str) -> None:
    """Refuse a link to nothing: what it leads to lies elsewhere, and was not fetched."""
    if not is_url(path) and (target := places.dangling(path)) is not None:
        raise InvalidRequest(path, f"a link to nothing, {printable(target)}", expected=EXPECTED, remedy=FETCH)


def _of_folder(folder: str) -> StoredDataset:
    try:
        files, shards = _in(folder)
    except OSError as error:
        raise InvalidRequest(folder, reason(error), expected=EXPECTED) from None
    if len(files) > 1:
        found = f"{len(files)} datasets: {listing(files)}"
        raise InvalidRequest(folder, found, expected="one", remedy="Give the dataset file.")
    if files:
        return _of_dataset_file(join(folder, files[0]))
    if not shards:
        makes = either("`create` makes shards of other files.", "`shardtool create` makes shards of other files.")
        raise InvalidRequest(folder, "no shards in it", expected=f"files that end in {patterns.KNOWN}", remedy=makes)
    return _stored(shards, None, folder.rstrip("/") or "/", own=False)


def _in(folder: str) -> tuple[list[str], list[str]]:
    """Return the names of the dataset files in a folder, and the paths of those files that are shards.

    Not all that is numbered as TensorFlow does (`train-00000-of-01024`) is a shard, for checkpoints are, too: the first
    files of a series tell by their bytes.

    Raises:
        OSError: It cannot be listed.
        AccessRefused: A store lets us list it, and not read.
    """
    names = sorted(places.list_folder(folder), key=natural)
    named = [name for name in names if name.endswith(DATASET_SUFFIX)]
    files = [name for name in named if is_dataset_file(join(folder, name), listed=True)]
    names = [name for name in names if not name.startswith(".")]
    series: dict[tuple[str, int], list[str]] = {}
    for name in names:
        if read_name(name) is None and (whole := patterns.whole_of(name)):
            series.setdefault((whole[0], whole[3]), []).append(name)
    sound = (some for some in series.values() if any(_may_be_shard(join(folder, one)) for one in some[:_LOOKED_AT]))
    numbered = {name for some in sound for name in some}
    return files, [join(folder, name) for name in names if read_name(name) or name in numbered]


def _may_be_shard(path: str) -> bool:
    """Tell whether a file's first bytes are those of a shard, or cannot be read, which is to be said."""
    try:
        return looks_like(path) is not None
    except CorruptShard:
        return True


def _of_pattern(text: str) -> StoredDataset:
    folder = folder_of(text)
    try:
        pattern = replace(parse_pattern(base_name(text)), folder=folder) if is_web(text) else parse_pattern(text)
    except InvalidRequest as error:
        if not any(mark in text for mark in _MARKS):
            what = "no such file" if is_shard_name(base_name(text)) else "no such file or folder"
            raise InvalidRequest(text, what, expected=EXPECTED, remedy=places.similar_path(text)) from None
        raise error from None
    meant, there = partial(_names_of, pattern), _there(pattern)
    if there is None:
        _check_named(pattern)
    seen = meant(there or [])
    file, listed, recorded = _dataset_file_of(pattern.folder, {*seen}, [pattern.dataset_file], meant)
    if there is None and not listed:  # one that is missing is missed when it is read
        first, count = join(pattern.folder, pattern.shard(0)), pattern.count or 0
        seen = [pattern.shard(at) for at in range(count)] if is_file(first) else []
    elif not seen and not any(mark in text for mark in _MARKS):
        listed = []
    found = meant([*seen, *listed])
    if not found:
        what = "no shards of that pattern" if any(mark in text for mark in _MARKS) else "no such file"
        remedy = "" if any(mark in text for mark in _MARKS) else places.similar_path(text)
        raise InvalidRequest(text, what, expected=EXPECTED, remedy=remedy)
    whole = recorded == pattern.text
    known = set(found)
    names = () if whole or pattern.count is None else (pattern.shard(at) for at in range(pattern.count))
    missing = tuple(islice((name for name in names if name not in known), _MOST_MISSING))
    shards = [join(pattern.folder, name) for name in found]
    return _stored(shards, file, pattern.folder, own=file is not None, whole=whole, missing=missing)


def _there(pattern: ShardPattern) -> Iterable[str] | None:
    """Return the names in the folder of a pattern; of a list, those of its own that are there; None: not listed."""
    if pattern.names is None:
        try:
            return None if is_web(pattern.folder) else names_in(pattern.folder, needed=True)
        except AccessRefused:
            if pattern.count is None:
                raise
            return None
    sizes = places.plain_sizes([join(pattern.folder, name) for name in pattern.names])
    return [name for name, size in zip(pattern.names, sizes, strict=True) if size is not None]


def _names_of(pattern: ShardPattern, names: Iterable[str]) -> list[str]:
    """Return those of some names that a pattern makes, each once, in its order."""
    if pattern.names is not None:
        known = {*names}
        return [name for name in pattern.names if name in known]
    numbers = {}
    for name in names:
        digits = name[len(pattern.prefix) : len(name) - len(pattern.suffix)]
        if name.startswith(pattern.prefix) and name.endswith(pattern.suffix) and digits.isascii() and digits.isdigit():
            at = int(digits) - pattern.first
            if at >= 0 and (pattern.count is None or at < pattern.count) and pattern.shard(at) == name:
                numbers[at] = name
    return [numbers[at] for at in sorted(numbers)]


def _check_named(pattern: ShardPattern) -> None:
    """Refuse a range that does not tell all of its names, or too many, where none can be listed."""
    where = join(pattern.folder, pattern.text)
    if pattern.count is None:
        found = "a range without an end on the web, where nothing is listed"
        raise InvalidRequest(where, found, expected=_EXPECTED_WEB)
    if pattern.count > patterns.MOST_NAMES:
        raise InvalidRequest(where, f"{pattern.count:,} names", expected=f"at most {patterns.MOST_NAMES:,}")


def _of_dataset_file(path: str) -> StoredDataset:
    _check_fetched(path)
    try:
        data = places.read_small(path)
    except OSError as error:
        begun = path.removesuffix(DATASET_SUFFIX)
        begun = join(folder_of(begun), patterns.replacing_name(base_name(begun)))
        remedy = "`shardtool remove`, as it was run before, ends what it began." if is_file(begun) else ""
        remedy = remedy or ("" if os.path.lexists(path) else places.similar_path(path))
        raise InvalidRequest(path, reason(error), expected=EXPECTED, remedy=remedy) from None
    names, own = listed_shards(data, path)
    folder = folder_of(path)
    if not is_url(path):  # no links in stores
        check_below(path, {os.path.dirname(name) for name in names})
    return _stored([join(folder, name) for name in names], path, folder, own=own, whole=True)


def check_below(path: str, folders: set[str]) -> None:
    """Check that none of the folders that a dataset file names is a link that leads out of its own folder.

    Raises:
        CorruptShard: One is.
    """
    folder = os.path.dirname(path)
    top = os.path.join(os.path.realpath(folder or "."), "")
    for below in sorted(folders - {""}):
        if not os.path.join(os.path.realpath(os.path.join(folder, below)), "").startswith(top):
            found = f"the folder {printable(below)} is a link out of {printable(folder or '.')}"
            expected = "shards in the dataset file's folder, or below it"
            raise CorruptShard(path, found, expected=expected, remedy="Nothing was read from there.")


def is_dataset_file(path: str, *, listed: bool = False) -> bool:
    """Tell whether a file is a dataset file of ours, damaged or not; one that was `listed` must be readable.

    Raises:
        AccessRefused: That one is not.
    """
    return _dataset_bytes(path, listed=listed) is not None


def listed_by(path: str) -> set[str]:
    """Return the shards that a dataset file of ours lists, as far as it can be read; none where it is no such file."""
    return {*(shard_names(_dataset_bytes(path) or b"") or ())}


def _dataset_bytes(path: str, *, listed: bool = False) -> bytes | None:
    """Return the bytes of a dataset file of ours, damaged or not; None: there is none."""
    try:
        data = places.read_small(path) if is_url(path) or os.path.isfile(path) else b""
    except (OSError, AccessRefused) as error:  # the latter is said of what is not there, where we may not list
        if listed and isinstance(error, AccessRefused):
            raise
        return None
    return data if shard_names(data) is not None else None


def usual_names(shards: list[str]) -> Iterator[str]:
    """Yield the names that the dataset file of these shards has by default; one alone may be any of a range."""
    with suppress(InvalidRequest):  # names that are no pattern's
        yield parse_pattern(shards).dataset_file
    if len(shards) == 1 and (found := _NUMBERED.fullmatch(shards[0])):
        with suppress(InvalidRequest):
            yield parse_pattern(f"{found[1]}{{{found[2]}..}}{found[3]}").dataset_file


def damaged_file(found: StoredDataset) -> str | None:
    """Return the path of the dataset file of these shards if the file is damaged; None: there is no such file."""
    if found.dataset_file is not None:
        return None
    for name in usual_names([base_name(path) for path in found.paths]):
        data = places.read_beside(path := join(found.folder, name))
        if data is not None and may_be_own(data):
            return path
    return None


def check_not_damaged(found: StoredDataset) -> None:
    """Refuse shards whose dataset file is damaged, for a verb that needs the file.

    Raises:
        CorruptShard: It is.
    """
    if (path := damaged_file(found)) is not None:
        read_dataset(places.read_small(path), path)


def _dataset_file_of(
    folder: str, there: set[str], usual: Iterable[str], meant: Callable[[Iterable[str]], list[str]]
) -> tuple[str | None, list[str], str]:
    """Return the dataset file that lists all shards that are there, which of its shards are meant, and its pattern.

    Else the one of the usual name, where it lists some, or is damaged. Elsewhere that name alone is looked for: a
    folder there may be large, or not listed.

    Raises:
        AccessRefused: One that is there may not be read.
    """
    usual, some = [*usual], list[tuple[str, list[str], str]]()
    others = () if is_url(folder) else (name for name in names_in(folder) if name.endswith(DATASET_SUFFIX))
    for name in dict.fromkeys((*usual, *others)):
        path = join(folder, name)
        try:
            data = _dataset_bytes(path, listed=True)
        except AccessRefused:
            if name in names_in(folder):
                raise
            continue  # it is said of what is not there, too, where we may not list
        if data is None:
            continue
        listed, recorded = listed_beside(data)
        found = path, meant(listed), recorded
        if found[1] and there.issubset(listed):
            return found
        if name in usual and (there.intersection(listed) or not listed):
            some.append(found)
    return some[0] if some else (None, [], "")


# Shards of a run that did not end: their sidecars say how many shards there were to be.
#
# A dataset file is written last, so where none is there, a run may have been killed. What has been published by then is
# sound, and looks like a smaller dataset: who makes a dataset file for it loses the rest without a word.
#
# Source: docs/format.md, "Sidecar".


ALL_SHARDS = "all of them, and their dataset file"


def unfinished(facts: Iterable[ShardFact | None], beside: Iterable[ShardFact] = ()) -> Iterator[str]:
    """Yield, in words, the runs, of `create` or of an append, of which fewer shards are there than their sidecars say.

    Args:
        facts: What the sidecar of each shard says; None where there is none, or it is damaged: such a shard may
            be of any of the runs.
        beside: The same of other shards that are there: who asks about some shards need not name all.
    """
    there: Counter[str] = Counter()
    planned: dict[str, int] = {}
    unknown = 0
    for fact in facts:
        if fact is None or fact.shards is None:
            unknown += 1
            continue
        there[fact.first] += 1
        planned[fact.first] = max(planned.get(fact.first, 0), fact.shards)
    there.update(fact.first for fact in beside if fact.first in planned)
    for first, number in sorted(planned.items()):
        if number > (seen := there[first] + unknown):
            what = f"{counted(seen, 'shard')} of {number:,} that were planned from {printable(first)[:80]} on"
            yield f"{what}: a run did not end, or not all was copied"


def facts_beside(found: StoredDataset) -> list[ShardFact]:
    """Return what the sidecars of other shards in a dataset's folder say."""
    given = {base_name(path) for path in found.paths if folder_of(path) == found.folder}
    others = [name for name in names_in(found.folder) if is_shard_name(name) and name not in given]
    return [fact for fact in for_each(fact_beside, [join(found.folder, name) for name in others]) if fact is not None]


def check_finished(found: StoredDataset) -> None:
    """Check that shards without a dataset file are all of their dataset, as far as their sidecars say.

    Raises:
        InvalidRequest: They are not.
    """
    there = [path for path, size in zip(found.paths, places.plain_sizes(found.paths), strict=True) if size is not None]
    for one in unfinished(for_each(fact_beside, there), facts_beside(found)):
        remedy = f"{create_again()} finishes such a run; `shardtool reshard` makes a dataset of those that are here."
        raise InvalidRequest(found.folder or ".", one, expected=ALL_SHARDS, remedy=remedy)


def fact_beside(shard: str) -> ShardFact | None:
    """Return what the sidecar beside a shard says; None where there is none, or it is damaged."""
    path = sidecar_path(shard, None)
    if (data := places.read_beside(path)) is None:
        return None
    from shardtool.dataset.shard_index import read_facts

    try:
        return read_facts(data, path)
    except CorruptShard:
        return None


def recorded_dots(found: StoredDataset) -> Dots:
    """Return where keys end in members' names, as far as the sidecars show: where a key has a dot, at the last one.

    Args:
        found: Shards without a dataset file of ours that says it.
    """
    from shardtool.dataset.shard_index import read_sidecar

    sidecars = [shard.sidecar for shard in found.shards]
    for where, data in zip(sidecars, for_each(places.read_beside, sidecars), strict=True):
        with suppress(CorruptShard):
            index = None if data is None else read_sidecar(data, where, None, metadata=False)
            if index is None or b"." not in bytes(index.keys):
                continue
            if any(b"." in key.rpartition(b"/")[2][1:] for key in index.all_keys()):
                return "last"
    return "first"


# Which datasets are meant where several may be: a folder of splits, a pattern with `{split}`, a glob, or a list.
#
# Each is then opened by itself. Shards in a folder that no dataset file tells of are a dataset of their own: what a run
# has left that did not end would else be passed over.


_SPLIT = "{split}"
_MARK = "\ue000"  # a stand-in for {split} while a pattern is parsed: a private-use character
_PATTERN = re.compile(r"[^{}<>,*?%\[\]]*\{\d{1,18}\.\.\d{0,18}\}[^{}<>,*?%\[\]]*", re.ASCII)


def given_datasets(given: Given) -> list[Given]:
    """Return the datasets that are meant, each as `find_dataset` takes it; one that is not there is one of them.

    Files of a list that are neither dataset files nor folders are the shards of one dataset; those that a dataset file
    in it lists are no other dataset.

    Raises:
        InvalidRequest: Nothing is of a pattern with `{split}`; or what is given is no name, and no list of names.
    """
    if given and isinstance(given, (str, os.PathLike)):
        found = _meant(os.fspath(given))
        return [given] if found == [os.fspath(given)] else found
    given = given_names("the dataset", given, EXPECTED)
    if "" in given:
        raise InvalidRequest("the dataset", "''", expected=EXPECTED)
    names = given
    if len(names) > 1:
        names = [name for name in names if not _is_beside_shards(name)]
    shards = [name for name in names if _is_shard_file(name)]
    if len(shards) == len(names):
        return [given]
    datasets = [one for name in names if name not in shards for one in _meant(name)]
    listed = {_full(path) for one in datasets if isinstance(one, str) for path in _paths_of(one) or ()}
    rest = [name for name in shards if _full(name) not in listed]
    found = [*datasets, *([rest] if rest else [])]
    return [*{_place(one): one for one in found}.values()]


def splits_in(folder: str, made: RunRecord) -> dict[str, DatasetFile]:
    """Return what the dataset files in a folder say, by their names, that the same run made for other splits."""
    names = [name for name in names_in(folder or ".") if name.endswith(DATASET_SUFFIX)] if made.split else []
    return _made_with(made, {name: join(folder, name) for name in names})


def other_splits(dataset: StoredDataset) -> list[StoredDataset]:
    """Return the other splits of the run that made a dataset, beside it or, as `{split}/NAME`, in folders beside."""
    if dataset.file is None or dataset.dataset_file is None:
        return []
    made, folder = dataset.file.made, dataset.folder
    paths = [join(folder, name) for name in splits_in(folder, made)]
    here = folder if is_url(folder) else os.path.abspath(folder)
    if base_name(here) == made.split:
        name = base_name(dataset.dataset_file)
        there = [join(folder_of(here), one) for one in names_in(folder_of(here)) if one != made.split]
        others = {one: join(one, name.replace(made.split, base_name(one))) for one in there}
        paths += [others[one] for one in _made_with(made, others)]
    return [open_dataset(path) for path in paths]


def _made_with(made: RunRecord, paths: Mapping[str, str]) -> dict[str, DatasetFile]:
    """Return what those of dataset files say that the same run made for other splits."""
    found = {name: sound_dataset(path) for name, path in paths.items()}
    return {name: other for name, other in found.items() if other is not None and made.is_split_with(other.made)}


def of_glob(given: Given) -> list[Given]:
    """Return the datasets that a glob, or a name with `{split}`, means, each of its own; whatever else is one."""
    names = given_names("the dataset", given, EXPECTED)
    if len(names) == 1 and (_SPLIT in names[0] or any(mark in names[0] for mark in "*?[")):
        return given_datasets(names[0])
    return [given]


def recorded_pattern(file: DatasetFile) -> ShardPattern | None:
    """Return the pattern that a dataset file records; None where that is none of a range."""
    if not _PATTERN.fullmatch(file.pattern):
        return None
    try:
        return parse_pattern(file.pattern)
    except (InvalidRequest, ValueError):
        return None


def _meant(name: str) -> list[Given]:
    """Return the datasets that one name means."""
    if _SPLIT not in name and is_url(name) and (is_web(name) or _is_named(name)):
        return [name]
    if is_folder(name):
        return _in_folder(name, below=True) or [name]
    if _SPLIT in name:
        return _of_splits(name)
    if any(mark in name for mark in "*?[") and not (is_file(name) if is_url(name) else os.path.exists(name)):
        found = matches(name)
        if any(one.endswith(DATASET_SUFFIX) or (not is_url(one) and os.path.isdir(one)) for one in found):
            return given_datasets(found)
    return [name]


def _is_named(name: str) -> bool:
    """Tell whether an address is, by its name, that of a dataset file, a shard, or a pattern of shards."""
    last = base_name(name)
    return last.endswith(DATASET_SUFFIX) or (is_shard_name(last) and not any(mark in last for mark in "*?["))


def _is_shard_file(name: str) -> bool:
    """Tell whether a name of a list is that of a file, and of no dataset file; or of a shard that is not there."""
    if is_url(name) or not os.path.lexists(name):
        return is_shard_name(base_name(name)) and not any(mark in base_name(name) for mark in "*?[{<%")
    return os.path.isfile(name) and not name.endswith(DATASET_SUFFIX)


def _full(path: str) -> str:
    return path if is_url(path) else os.path.abspath(path)


def _in_folder(folder: str, *, below: bool) -> list[Given]:
    """Return the datasets in a folder, or where it holds none, in the folders in it; none where there are none."""
    try:
        files, shards = _in(folder)
    except OSError:
        return []
    if not files and not shards:
        plain = sorted(places.folders_in(folder), key=natural) if below else []
        paths = [join(folder, name) for name in plain if not name.startswith(".")]
        return [one for path in paths for one in _in_folder(path, below=False)]
    rest = _untold(folder, files, shards) if files else []
    if len(files) + bool(rest) <= 1:
        return [folder]
    return [*(join(folder, name) for name in files), *([rest] if rest else [])]


def _untold(folder: str, files: list[str], shards: list[str]) -> list[str]:
    """Return the shards of a folder that no dataset file in it lists, and that have no name of one's pattern."""
    told = [join(folder, name) for name in files]
    listed = set[str]().union(*map(listed_by, told))
    owning = [pattern for file in map(sound_dataset, told) if file and (pattern := recorded_pattern(file))]
    found = [(base_name(path), path) for path in shards]
    rest = [(name, path) for name, path in found if output_text(name) not in listed]
    return [path for name, path in rest if not any(one.owns(name) for one in owning)]


def _of_splits(text: str) -> list[Given]:
    """Return the splits of one run by a name with `{split}`: dataset files, folders or shard patterns.

    Raises:
        InvalidRequest: There are none, one of the run is missing, or splits of several runs have such names.
    """
    names = datasets_by_split(text)
    return [dataset for split in _of_one_run(text, names) for dataset in names[split]]


def datasets_by_split(text: str) -> dict[str, list[Given]]:
    """Return all datasets that have a name with `{split}`, of any run, by what they have for `{split}`.

    Raises:
        InvalidRequest: There are none.
    """
    if is_web(text):
        raise InvalidRequest(text, "{split} on the web, where nothing is listed", expected="the name of one dataset")
    head, _, tail = text.partition(_SPLIT)
    folder, prefix = folder_of(head), base_name(head)
    here, slash, _ = tail.partition("/")
    name = re.compile(f"{re.escape(prefix)}(.+){re.escape(here)}", re.DOTALL)
    if not slash and is_shard_name(here):
        pattern = parse_pattern(f"{prefix}{_MARK}{tail}".replace(_SPLIT, _MARK))
        if pattern.names is None:
            start = re.escape(pattern.prefix).replace(_MARK, "(.+?)", 1).replace(_MARK, r"\1")
            name = re.compile(rf"{start}\d+{re.escape(pattern.suffix)}", re.DOTALL)
    splits = {match[1] for one in names_in(folder, needed=True) if (match := name.fullmatch(one))}
    names = {split: _of_split(text.replace(_SPLIT, split)) for split in sorted(splits, key=natural)}
    if not any(names.values()):
        raise InvalidRequest(text, "no dataset of such a name", expected=EXPECTED)
    return names


def _of_one_run(text: str, names: Mapping[str, list[Given]]) -> list[str]:
    """Return the splits of the run that made datasets; all of them if no dataset is a split.

    Dataset files of shardtool 0.1 may not list the splits of their run.

    Args:
        text: The name with `{split}`.
        names: The datasets that have such a name, by what they have for `{split}`.
    """
    files = [(split, file) for split, found in names.items() for one in found if (file := _file_of(one)) is not None]
    made = {split: file.made for split, file in files if file.made.split == split}
    runs: list[set[str]] = []
    for record in made.values():
        splits = {*record.splits}
        joined = [run for run in runs if run & splits]  # an update may have added splits
        runs = [*(run for run in runs if run not in joined), splits.union(*joined)] if splits else runs
    if not runs:
        others = {split for split, _ in files if split not in made} if made else set()
        return [split for split in names if split not in others]
    if len(runs) > 1:
        found = "; ".join(listing(sorted(run, key=natural), 3) for run in runs)
        raise InvalidRequest(text, f"splits of {len(runs)} runs: {found}", expected="the splits of one run",
                             remedy="Name the dataset files instead.")  # fmt: skip
    if missing := [split for split in sorted(runs[0], key=natural) if not names.get(split)]:
        lacking = listing([text.replace(_SPLIT, split) for split in missing], 3)
        found = f"{lacking} {'does' if len(missing) == 1 else 'do'} not exist"
        expected = f"all splits of the run: {listing(sorted(runs[0], key=natural), 10)}"
        raise InvalidRequest(text, found, expected=expected,
                             remedy="To read fewer splits, name their dataset files instead.")  # fmt: skip
    return [split for split in names if split in runs[0]]


def _file_of(given: Given) -> DatasetFile | None:
    """Return the content of the dataset file of a dataset; None if it has none, or a damaged one."""
    path = given if isinstance(given, str) and given.endswith(DATASET_SUFFIX) else None
    with suppress(InvalidRequest, CorruptShard):
        path = path or find_dataset(given, lacking=True).dataset_file
    return None if path is None else sound_dataset(path)


def _of_split(name: str) -> list[Given]:
    """Return the datasets that the name of a split means; none where that is the name of something else."""
    if is_folder(name):
        return _in_folder(name, below=True)
    if not (name.endswith(DATASET_SUFFIX) or is_shard_name(name)) or _is_beside_shards(name):
        return []
    return [name] if (not is_url(name) and os.path.lexists(name)) or _paths_of(name) != () else []


def _is_beside_shards(name: str) -> bool:
    """Tell whether a file is about shards and no dataset: a sidecar, what was left out, JSON of other tools."""
    if not is_url(name) and not os.path.isfile(name):
        return False
    if name.endswith((patterns.SIDECAR_SUFFIX, patterns.SKIPPED_SUFFIX)):
        return True
    folder, base = folder_of(name), base_name(name)
    stem = base.removesuffix(DATASET_SUFFIX)
    if stem == base or is_dataset_file(name):
        return False
    shard = any(one.startswith(f"{stem}.") and is_shard_name(one) for one in names_in(folder))
    return shard or base in (patterns.TIMM_FILE, patterns.OPEN_CLIP_FILE)


def _paths_of(name: str) -> tuple[str, ...] | None:
    """Return the shards of a dataset, of one that is not there none; None: it is damaged."""
    try:
        return find_dataset(name, lacking=True).paths
    except InvalidRequest:
        return ()
    except CorruptShard:
        return None


def _place(given: Given) -> object:
    """Return what is equal for two names of one dataset."""
    return places.real_path(os.fspath(given)) if isinstance(given, (str, os.PathLike)) else tuple(given)
