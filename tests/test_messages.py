"""Option names in messages: fields in Python, typed names on the command line."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from shardtool import (
    CopyOptions,
    CreateOptions,
    DiffOptions,
    DoctorOptions,
    ExportOptions,
    ExtractOptions,
    IndexOptions,
    InvalidRequest,
    RemoveOptions,
    ReshardOptions,
    SampleFailed,
    VerifyOptions,
    WriterOptions,
    create,
    reshard,
)
from shardtool.cli.commands import VERBS
from shardtool.messages import (
    call_text,
    cli_name,
    export_call_text,
    flag_text,
    option_text,
    recreate_hint,
    use_cli_names,
    uses_cli_names,
)
from shardtool.request.dataset_options import InspectOptions
from shardtool.verbs.cache.cache import CacheWriterOptions
from shardtool.verbs.cache.cache_space import CacheSpace
from tests.helpers import typed, write_tree
from tests.package_source import PACKAGE, module_tree, nodes, package_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


_VERBS: dict[str, type[Any]] = {
    "create": CreateOptions, "reshard": ReshardOptions, "verify": VerifyOptions, "index": IndexOptions,
    "export": ExportOptions, "diff": DiffOptions, "copy": CopyOptions, "extract": ExtractOptions,
    "remove": RemoveOptions, "doctor": DoctorOptions,
    "inspect": InspectOptions, "ShardWriter": WriterOptions,
    "Cache": CacheSpace, "Cache.writer": CacheWriterOptions,
}  # fmt: skip
_NAMES = {"option_text", "flag_text"}  # the functions that name an option
_OTHER_TEXTS = {"call_text", "choose_text", "export_text", "export_call_text", "recreate_hint", "resume_hint"}
_USES_NAMES = re.compile("|".join(_NAMES | _OTHER_TEXTS))  # parsing all modules takes a second


class Named(NamedTuple):
    """An option that a message names."""

    module: str
    line: int
    verb: str  # empty: the verb of the run
    name: str


def _modules() -> dict[str, Path]:
    modules = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in package_files()}
    return {name: path for name, path in modules.items() if not name.startswith("cli.") and name != "messages"}


def _calls(nodes: Iterable[ast.AST], names: set[str]) -> list[ast.Call]:
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in names]


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that are evaluated when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield child
            yield from _outside_functions(child)


@cache
def _named() -> list[Named]:
    """Return every option that a message of the library names by a literal name."""
    named_options = []
    for module, path in _modules().items():
        if not _USES_NAMES.search(path.read_text(encoding="utf-8")):
            continue
        for call in _calls(nodes(path), _NAMES):
            arguments = call.args if isinstance(call.func, ast.Name) and call.func.id == "flag_text" else call.args[:1]
            texts = [part.value for arg in arguments for part in ast.walk(arg) if isinstance(part, ast.Constant)]
            named_options += [Named(module, call.lineno, "", text) for text in texts if isinstance(text, str)]
        for call in _calls(nodes(path), {"call_text"}):
            if isinstance(call.args[0], ast.Constant):
                named_options += [
                    Named(module, call.lineno, str(call.args[0].value), str(word.arg)) for word in call.keywords
                ]
    return named_options


def _has(verb: str, name: str) -> bool:
    return name in getattr(_VERBS[verb], "_fields", ()) or name in getattr(_VERBS[verb], "__dataclass_fields__", ())


def test_messages_name_existing_options() -> None:
    """Every option in a message is a field of the verb's options."""
    wrong = [
        named
        for named in _named()
        if not any(_has(verb, named.name) for verb in ([named.verb] if named.verb else _VERBS))
    ]
    assert wrong == []
    assert len(_named()) > 100


@pytest.mark.parametrize("verb", ["create", "reshard", "verify", "index", "copy"])
def test_the_command_line_accepts_names_in_messages(verb: str) -> None:
    """The verb accepts the command-line names that its messages use."""
    command = VERBS[verb]()
    known = {name for param in command.params for name in param.opts}
    names = {name.name for name in _named() if _has(verb, name.name)}
    assert {cli_name(name).split()[0] for name in names} <= known


def test_messages_use_the_naming_functions() -> None:
    """Library texts contain no literal `--option`, and messages are not created at import."""
    wrong = []
    for module, path in _modules().items():
        source = path.read_text(encoding="utf-8")
        if module == "skipped" or not (_USES_NAMES.search(source) or re.search("--[a-z]", source)):
            continue  # the texts in `skipped` are those of docs/errors.md
        allowed = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
        allowed |= {id(part) for call in _calls(nodes(path), {"choose_text"}) for part in ast.walk(call.args[1])}
        texts = [node for node in nodes(path) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        wrong += [
            f"{module}:{node.lineno}"
            for node in texts
            if re.search(r"--[a-z]", str(node.value)) and id(node) not in allowed
        ]
        at_import = _calls(_outside_functions(module_tree(path)), {*_NAMES, *_OTHER_TEXTS})
        wrong += [f"{module}:{call.lineno}" for call in at_import]
    assert wrong == []


@pytest.mark.parametrize(
    ("python", "words"),
    [
        (lambda: option_text("max_size"), ("max_size", "--max-size")),
        (lambda: option_text("dots", "last"), ("dots='last'", "--dots last")),
        (lambda: option_text("field", {"cls": "bi"}), ("field={'cls': 'bi'}", "--field cls=bi")),
        (lambda: option_text("drop_fields", ("a", "b")), ("drop_fields=('a', 'b')", "--fields -a,-b")),
        (
            lambda: option_text("rename_fields", {"a": "b", "c": "d"}),
            ("rename_fields={'a': 'b', 'c': 'd'}", "--fields a=b,c=d"),
        ),
        (lambda: option_text("per_host", 4), ("per_host=4", "--fetch per-host=4")),
        (lambda: flag_text("retry_failed"), ("retry_failed=True", "--fetch retry-failed")),
        (lambda: option_text("split_from_folder"), ("split_from_folder", "--split-by folder")),
        (lambda: option_text("split_column", "bi"), ("split_column='bi'", "--split-by bi")),
        (lambda: option_text("classes", ("a", "b")), ("classes=('a', 'b')", "--classes a --classes b")),
        (lambda: flag_text("append", "resume"), ("append=True, resume=True", "--append --resume")),
        (lambda: flag_text("resume", "overwrite"), ("resume=True, overwrite=True", "--resume --overwrite")),
        (lambda: option_text("stat"), ("stat", "--no-stat")),
        (lambda: flag_text("portable"), ("portable=True", "--portable")),
        (lambda: call_text("verify", repair=True), ("`verify(repair=True)`", "`shardtool verify --repair`")),
        (
            lambda: export_call_text("x.json", ["wids"], overwrite=True),
            ("`export('x.json', ['wids'], overwrite=True)`", "`shardtool index x.json --export wids --overwrite`"),
        ),
        (
            recreate_hint,
            (
                "Run the original command with resume=True, or `shardtool index`, to recreate the file.",
                "Run the original command with --resume, or `shardtool index`, to recreate the file.",
            ),
        ),
    ],
)
def test_options_in_both_forms(python: Any, words: tuple[str, str]) -> None:
    """Options have a Python form and a command-line form."""
    with use_cli_names():
        assert (python(), uses_cli_names()) == (words[1], True)
    assert (python(), uses_cli_names()) == (words[0], False)


def test_an_error_in_both_forms(tmp_path: Path) -> None:
    """Library and command line name the option in their own form, also in JSON."""
    write_tree(tmp_path / "s", {"a.jpg": b"abc", "b.jpg": b"x" * 20_000})
    with pytest.raises(InvalidRequest) as caught:
        create(tmp_path / "s", f"{tmp_path}/o/x-{{0..}}.tar", CreateOptions(max_size=4000, workers=0))
    assert caught.value.where == "max_size"
    remedy = "Raise max_size, or use oversize='alone' (one shard per such sample) or oversize='skip'."
    assert caught.value.remedy == remedy
    words = ("create", tmp_path / "s", f"{tmp_path}/o/x-{{0..}}.tar", "--max-size", "4000", "--workers", "0")
    assert "--max-size: 1 sample too large" in typed(*words).err
    remedy = "Raise --max-size, or use --oversize alone (one shard per such sample) or --oversize skip."
    assert remedy in typed(*words).err
    assert f'"remedy": "{remedy}"' in typed(*words, "--json").out
    with pytest.raises(InvalidRequest, match=r"^max_size"):
        create(tmp_path / "s", f"{tmp_path}/o/x-{{0..}}.tar", CreateOptions(max_size=4000, workers=0))


@pytest.mark.parametrize(("workers", "start"), [(0, "auto"), (1, "fork"), (1, "spawn")])
def test_workers_use_the_names_of_their_parent(tmp_path: Path, workers: int, start: Any) -> None:
    """Errors from workers name options like their parent, for every start method and without workers."""
    write_tree(tmp_path / "s", {"a.txt": b"abc"})
    output, function = f"{tmp_path}/o/x-{{0..}}.tar", "tests.mapped:failing"
    options = CreateOptions(map=function, workers=workers, start_method=start)
    with pytest.raises(SampleFailed, match=r"again with resume=True.*on_error=.skip"):
        create(tmp_path / "s", output, options)
    words = ("create", tmp_path / "s", output, "--map", function, f"--workers={workers}", "--start-method", start)
    ran = typed(*words, traceback=True)
    assert (ran.code, "the function of --map raised ValueError" in ran.err) == (6, True)


def test_messages_name_the_path(tmp_path: Path) -> None:
    """Messages about the source contain its path."""
    source = tmp_path / "empty"
    source.mkdir()
    with pytest.raises(InvalidRequest) as caught:
        create(source, f"{tmp_path}/x-{{0..}}.tar", CreateOptions(workers=0))
    assert caught.value.where == str(source)
    with pytest.raises(InvalidRequest) as caught:
        reshard([], f"{tmp_path}/x-{{0..}}.tar", ReshardOptions(workers=0))
    assert str(caught.value).startswith("the datasets: none given")
    ran = typed("create", source, tmp_path / "a" / "x-0.tar", tmp_path / "b" / "x-1.tar")
    assert ran.err.startswith(f"shardtool: {tmp_path}/a/x-0.tar ... {tmp_path}/b/x-1.tar: shards in 2 folders")
