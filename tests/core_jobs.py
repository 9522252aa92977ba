"""Run the core of shardtool in a process that cannot import optional modules and the packages that only they need.

`python -m tests.core_jobs SAMPLES WORK` runs each job of the core once. SAMPLES is a folder of samples, and WORK is an
empty folder. `python -m tests.core_jobs messages` prints the errors of optional features whose packages are missing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from pathlib import PurePath
    from types import ModuleType

# The dependencies of the core, and the dependencies of pandas and click.
CORE_PACKAGES = frozenset({
    "click", "numpy", "pyarrow", "pandas", "crc32c", "braceexpand", "tqdm", "tomli",
    "dateutil", "pytz", "tzdata", "six", "colorama",
})  # fmt: skip
# Optional features: exports, stores, executors, pages, downloads, frameworks, images and `doctor`.
OPTIONAL_MODULES = frozenset({
    "shardtool.compat", "shardtool.execute.ray_pool", "shardtool.execute.ray_task", "shardtool.fetch.client",
    "shardtool.fetch.fetcher", "shardtool.fetch.limits", "shardtool.interop.index_formats",
    "shardtool.publish.export_indexes", "shardtool.ray", "shardtool.storage.remote.buckets",
    "shardtool.storage.remote.failures", "shardtool.storage.remote.fsspec", "shardtool.storage.remote.http",
    "shardtool.storage.remote.lock", "shardtool.storage.remote.network", "shardtool.storage.remote.objects",
    "shardtool.storage.remote.store_access", "shardtool.storage.remote.store_copy", "shardtool.storage.remote.upload",
    "shardtool.storage.remote_folder", "shardtool.tensorflow", "shardtool.torch", "shardtool.transform.exif",
    "shardtool.transform.image", "shardtool.transform.image_decode", "shardtool.transform.jpeg",
    "shardtool.transform.thumbnail", "shardtool.verbs.doctor", "shardtool.verbs.export",
    "shardtool.verbs.inspect.contact_sheet", "shardtool.verbs.inspect.page", "shardtool.verbs.inspect.read_speed",
    "shardtool.verbs.verify.reader_checks",
})  # fmt: skip


class CoreFinder:
    """Finds modules like Python's `PathFinder`, but hides `modules` and all installed packages except `packages`."""

    find_distributions = staticmethod(PathFinder.find_distributions)

    def __init__(self, modules: frozenset[str], packages: frozenset[str] = CORE_PACKAGES) -> None:
        installed = {name for distribution in distributions() for name in _top_level(distribution.files or ())}
        self._hidden = (installed - packages - {"shardtool"}) | modules

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None for a hidden module, as if it were not installed."""
        parts = name.split(".")
        if self._hidden.intersection(".".join(parts[:end]) for end in range(1, len(parts) + 1)):
            return None
        return PathFinder.find_spec(name, path, target)


def _top_level(files: Sequence[PurePath]) -> set[str]:
    return {file.parts[0].partition(".")[0] for file in files} - {""}


def run_jobs(samples: str, work: Path) -> None:
    """Run each of the core's jobs once, and check its result."""
    import shardtool

    for name in (*OPTIONAL_MODULES, "PIL", "jinja2", "obstore", "urllib3", "aiohttp"):
        assert not _can_import(name), name
    pattern, manifest = str(work / "out-{000000..}.tar"), work / "list.csv"
    created = shardtool.create(samples, pattern, max_count=5)
    files = sorted(path for path in Path(samples).resolve().rglob("*") if path.is_file())
    manifest.write_text("".join(["key,path\n", *(f"k{number},{path}\n" for number, path in enumerate(files))]))
    (work / "list").mkdir()
    listed = shardtool.create(manifest, str(work / "list" / "m-{000000..}.tfrecord"), allow_outside=True)
    assert listed.samples == len(files)
    dataset = str(work / "out.json")
    for name in ("copy", "whole", "extracted", "parts"):
        (work / name).mkdir()
    resharded = shardtool.reshard(dataset, str(work / "whole" / "all-{000000..}.tar"), where="size > 0", shuffle=True)
    assert resharded.samples == created.samples
    shardtool.copy(dataset, work / "copy")
    copied = str(work / "copy" / "out.json")
    assert shardtool.verify(copied, source=samples).sound
    assert not shardtool.diff(dataset, copied).added
    first = shardtool.open(copied)[0]["__key__"]
    (work / "keys.txt").write_text(first + "\n")
    shardtool.remove(copied, keys_from=work / "keys.txt")
    (work / "copy" / "out-000001.index").unlink()
    assert not shardtool.verify(copied).sound
    shardtool.index(copied)
    assert shardtool.verify(copied).sound
    summary = shardtool.inspect(copied, looks=0)
    assert summary.samples == created.samples - 1
    extracted = shardtool.extract(copied, work / "extracted")
    assert extracted.samples == summary.samples
    (work / "more").mkdir()
    (work / "more" / "new.txt").write_text("new")
    appended = shardtool.create(work / "more", pattern, max_count=5, append=True)
    assert appended.samples == created.samples + 1
    for part in ("1/2", "2/2"):
        shardtool.create(samples, str(work / "parts" / "p-{000000..}.tar"), max_count=5, part=part)
    with shardtool.ShardWriter(str(work / "w-{000000..}.tar"), max_count=2) as writer:
        for number in range(5):
            writer.write({"__key__": f"s{number}", "txt": f"text {number}", "cls": number})
    stream = shardtool.open(work / "w.json").stream(shuffle=True, seed=1, rank=0, world_size=1)
    assert sorted(sample["__key__"] for sample in stream) == [f"s{number}" for number in range(5)]
    for arguments in (["inspect", dataset], ["verify", "--quick", dataset], ["--version"]):
        assert _run_command(arguments) == 0


def _can_import(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        return False
    return True


def _run_command(arguments: list[str]) -> int:
    from shardtool.cli import main

    sys.argv = ["shardtool", *arguments]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)


def print_messages() -> None:
    """Use each optional feature without its packages, and print the errors."""
    import shardtool
    from shardtool.read.decode import Decode
    from shardtool.tensorflow import import_library

    features: dict[str, Callable[[], object]] = {
        "remote": lambda: shardtool.verify("s3://bucket/out.json"),
        "ray": lambda: shardtool.create("samples", "out-{0..}.tar", executor="ray"),
        "urls": lambda: shardtool.create("list.csv", "out-{0..}.tar", url="jpg=url"),
        "audio": lambda: Decode((("wav", "audio"),)),
        "torch": lambda: import_module("shardtool.torch"),
        "tensorflow": lambda: import_library("keras"),
    }
    for extra, use in features.items():
        try:
            use()
        except (shardtool.ShardError, ImportError) as error:
            print(extra, error)  # noqa: T201 - the output of this program


if __name__ == "__main__":
    if sys.argv[1] == "messages":
        sys.meta_path[:] = [BuiltinImporter, FrozenImporter, CoreFinder(frozenset())]
        print_messages()
    else:
        sys.meta_path[:] = [BuiltinImporter, FrozenImporter, CoreFinder(OPTIONAL_MODULES)]
        run_jobs(sys.argv[1], Path(sys.argv[2]))
