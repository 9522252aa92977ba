"""A table of all runs that publish files: commands and `ShardWriter`. Tests kill these runs and repeat them."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from shardtool import ShardWriter, copy, create, index, merge, remove, reshard, verify
from shardtool.errors import InvalidRequest
from shardtool.storage.folders import open_folder
from tests.helpers import write_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Again = Literal[0, 1]
FIRST: Final = 0
AGAIN: Final = 1
_KEYS = [f"{name}{number}" for name in "abc" for number in range(3)]
_REMOVED = ["a1", "b1"]


def _source(root: Path, *keys: str, size: int = 900) -> Path:
    files = {f"{key}.txt": key.encode() * size for key in keys}
    return write_tree(root / f"source-{keys[0]}-{size}", files | {f"{key}.cls": b"1" for key in keys})


@dataclass(frozen=True)
class Job:
    """A run that publishes files in `root/out`, or in a store.

    Attributes:
        prepare: A function that writes the state before the run. Its arguments are the output (a folder or store) and
            `root`, the folder of the sources.
        run: A function that performs the run. Its last argument is `FIRST`, or `AGAIN` after an interrupted run.
        is_sound: Whether the dataset is valid whenever a dataset file exists, except during an exchange
            (`.out.replacing`).
        keeps_files: Whether the second run keeps the files that the first run has published.
        keeps_old: Whether the old dataset is valid at any time.
    """

    prepare: Callable[[str, Path], object]
    run: Callable[[str, Path, Again], object]
    is_sound: bool = True
    keeps_files: bool = True
    keeps_old: bool = False


def _nothing(_out: str, root: Path) -> None:
    _source(root, *_KEYS)


def _pack(out: str, root: Path, *keys: str, **options: object) -> None:
    create(_source(root, *(keys or _KEYS)), f"{out}/out-{{000..}}.tar", max_count=3, workers=0, **options)  # type: ignore[arg-type]


def _pack_twice(out: str, root: Path) -> None:
    _pack(out, root, size=700)


def _pack_other(out: str, root: Path, *keys: str) -> None:
    source = _source(root, *(keys or (*_KEYS, "d0", "d1", "d2")), size=700)
    create(source, f"{out}/out-{{000..}}.tar", max_count=3, workers=0)


def _pack_part(out: str, root: Path, part: str, *, resume: bool = False) -> None:
    _pack(out, root, part=part, resume=resume)
    if resume:  # records that remain after an interrupted merge are deleted only by the next merge
        _merge(out, root, AGAIN)


def _packed_elsewhere(root: Path, *keys: str) -> Path:
    folder = root / f"packed-{len(keys)}"
    if not folder.exists():
        _pack(str(folder), root, *keys)
    return folder / "out.json"


def _grown(root: Path) -> Path:
    folder = root / "grown"
    if not folder.exists():
        _pack(str(folder), root, *_KEYS)
        _pack(str(folder), root, "d0", "d1", append=True)
    return folder / "out.json"


def _reshard(out: str, root: Path, again: Again) -> None:
    reshard(_packed_elsewhere(root, *_KEYS), f"{out}/out-{{000..}}.tar", shards=2, workers=0, resume=bool(again))


def _shards_alone(out: str, root: Path) -> None:
    _pack(out, root)
    for name in os.listdir(out):
        if not name.endswith(".tar"):
            os.unlink(os.path.join(out, name))


def _damage(out: str, root: Path) -> None:
    """Flip a byte of a shard, and delete another shard with its sidecar."""
    _pack(out, root)
    _change(f"{out}/out-000.tar", lambda data: data[:700] + b"?" + data[701:])
    for name in ("out-002.tar", "out-002.index"):
        _change(f"{out}/{name}", lambda _: None)


def _damage_sidecars(out: str, root: Path) -> None:
    """Damage two sidecars that can be rebuilt, and a shard that cannot."""
    _pack(out, root)
    _change(f"{out}/out-001.tar", lambda data: data[:-9])
    _change(f"{out}/out-000.index", lambda data: data[:-9] + b"123456789")
    _change(f"{out}/out-002.index", lambda _: None)


def _change(path: str, change: Callable[[bytes], bytes | None]) -> None:
    location, _, name = path.rpartition("/")
    folder = open_folder(location)
    data = change(folder.read(name))
    if data is None:
        folder.remove([name])
    else:
        folder.publish_bytes(name, data)


def _write(out: str, *, pattern: str = "out-{000..}.tar", keys: list[str] = _KEYS, **options: object) -> None:
    with ShardWriter(f"{out}/{pattern}", max_count=3, **options) as writer:  # type: ignore[arg-type]
        for key in keys[writer.samples :]:
            writer.write({"__key__": key, "txt": key.encode() * 900}, {"n": len(key)} if key > "b" else None)


def _write_parts(out: str, _root: Path) -> None:
    for part in range(2):
        _write(out, keys=_KEYS[part * 4 : part * 4 + 4], part=part, parts=2)


def _merge(out: str, _root: Path, again: Again) -> None:
    with suppress(InvalidRequest) if again else nullcontext():  # the first run may have merged all parts
        merge(f"{out}/out-{{000..}}.tar")


JOBS = {
    "create": Job(_nothing, lambda out, root, again: _pack(out, root, resume=bool(again))),
    "create --overwrite": Job(_pack_other, lambda out, root, _: _pack(out, root, overwrite=True), keeps_files=False),
    "create --append": Job(
        _pack,
        lambda out, root, again: _pack(out, root, "d0", "d1", "d2", "e0", append=True, resume=bool(again)),
        keeps_old=True,
    ),
    "create --part": Job(
        lambda out, root: _pack_part(out, root, "1/2"),
        lambda out, root, again: _pack_part(out, root, "2/2", resume=bool(again))
    ),
    "reshard": Job(_nothing, _reshard),
    "copy": Job(_nothing, lambda out, root, _: copy(_packed_elsewhere(root, *_KEYS), out, workers=0)),
    "copy of a grown dataset": Job(_pack, lambda out, root, _: copy(_grown(root), out, workers=0), keeps_old=True),
    "copy --overwrite": Job(
        _pack_other, lambda out, root, _: copy(_packed_elsewhere(root, *_KEYS), out, workers=0, overwrite=True)
    ),
    "remove": Job(_pack, lambda out, _, again: _remove(out, again)),
    "verify --repair": Job(
        _damage_sidecars, lambda out, _, __: verify(f"{out}/out.json", workers=0, repair=True), is_sound=False
    ),
    "verify --repair --source": Job(
        _damage,
        lambda out, root, _: verify(f"{out}/out.json", workers=0, repair=True, source=_source(root, *_KEYS)),
        is_sound=False,
    ),
    "index": Job(_shards_alone, lambda out, _, __: index(f"{out}/out-{{000..002}}.tar", workers=0)),
    "index --columns-from": Job(
        _pack, lambda out, _, __: index(f"{out}/out.json", workers=0, columns_from="cls"), is_sound=False
    ),
    "ShardWriter": Job(  # the journal lists a shard after it is published
        _nothing, lambda out, _, again: _write(out, resume=bool(again)), keeps_files=False
    ),
    "ShardWriter overwrite": Job(_pack_other, lambda out, _, __: _write(out, overwrite=True), keeps_files=False),
    "merge": Job(_write_parts, _merge),
}  # fmt: skip


def _remove(out: str, again: Again) -> None:
    done = remove(f"{out}/out.json", keys_from=_REMOVED, workers=0)
    assert again or done.datasets
