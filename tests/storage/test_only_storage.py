"""Only `storage/` accesses the file system: no other package opens, lists, creates, renames or deletes files."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.package_source import PACKAGE, nodes, package_files

_OS_FUNCTIONS = {
    "access", "chmod", "chown", "fwalk", "link", "listdir", "lstat", "makedirs", "mkdir", "mkfifo", "open", "readlink",
    "remove", "removedirs", "rename", "renames", "replace", "rmdir", "scandir", "stat", "statvfs", "symlink",
    "truncate", "unlink", "utime", "walk",
}  # fmt: skip
_FILE_FUNCTIONS = {"os": _OS_FUNCTIONS, "shutil": {"copy", "copyfile", "copytree", "move", "rmtree"}, "io": {"open"}}

# The file functions that each module may call, with the reason.
_ALLOWED = {
    # Loops that run once per file of a source: another layer of calls would slow down the listing.
    "source/scan.py": {"os.lstat", "os.open", "os.readlink", "os.scandir", "os.stat"},
    "source/stat_files.py": {"os.lstat", "os.stat"},
    # Small files are opened from the source's descriptor, one call for each.
    "write/packer.py": {"os.open"},
    "write/tar_packer.py": {"os.open"},
    # A few files of a planned listing are compared.
    "source/plan_file.py": {"os.stat"},
    # The key of Hugging Face's cache contains the times of the sidecars.
    "read/huggingface.py": {"os.stat"},
    # The kernel describes processors and threads in files.
    "execute/local_pool.py": {"open", "os.listdir"},
    # A node's folders are compared with those of the parent's machine.
    "execute/ray_task.py": {"os.access", "os.stat"},
    # Standard streams are redirected to the null device.
    "execute/worker.py": {"os.open"},
    "cli/__init__.py": {"open", "os.open"},
    # The input and output of a command are kept in temporary files, which are removed when the run ends.
    "cli/output.py": {"open"},
    "cli/arguments.py": {"open"},
    "cli/terminal.py": {"open"},
}


def _file_calls(path: Path) -> Iterator[str]:
    """Yield the file functions that a module calls."""
    for node in nodes(path):
        match node:
            case ast.Call(func=ast.Name(id="open")):
                yield "open"
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in _FILE_FUNCTIONS.get(module, ()):
                yield f"{module}.{name}"
            case ast.ImportFrom(module=str(module), names=names) if module in _FILE_FUNCTIONS:
                yield from (f"{module}.{alias.name}" for alias in names if alias.name in _FILE_FUNCTIONS[module])


def test_only_storage_touches_files() -> None:
    """Outside of `storage/`, exactly the listed modules call file functions, each for a stated reason."""
    calls = {path.relative_to(PACKAGE).as_posix(): {*_file_calls(path)} for path in package_files()}
    storage_calls = {call for name, called in calls.items() if name.startswith("storage/") for call in called}
    assert {"open", "os.open", "os.rename", "os.unlink", "os.listdir", "os.scandir"} <= storage_calls
    others = {name: called for name, called in calls.items() if called and not name.startswith("storage/")}
    assert others == _ALLOWED
