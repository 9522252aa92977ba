"""Python calls of verbs, with keyword arguments or an options object."""

from __future__ import annotations

import inspect as signatures
import pickle
import subprocess
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest

import shardtool
from shardtool import (
    CopyOptions,
    CreateOptions,
    DiffOptions,
    DoctorOptions,
    ExportOptions,
    ExtractOptions,
    IndexOptions,
    InspectOptions,
    InvalidRequest,
    Observer,
    RemoveOptions,
    ReshardOptions,
    ShardWriter,
    VerifyOptions,
    WriterOptions,
    create,
    verify,
)
from shardtool.request.option_spec import option_specs, option_texts
from shardtool.writer.options import WriterKeywords
from tests.helpers import REPO, read_tree, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VERBS: dict[str, type[Any]] = {
    "create": CreateOptions, "reshard": ReshardOptions,
    "verify": VerifyOptions, "repair": VerifyOptions, "inspect": InspectOptions, "index": IndexOptions,
    "export": ExportOptions, "copy": CopyOptions, "diff": DiffOptions, "extract": ExtractOptions,
    "remove": RemoveOptions, "doctor": DoctorOptions,
}  # fmt: skip
_ONLY_PYTHON = {"for", "no-stat"}  # a keyword, and values that Python considers false


class _Heard(Observer):
    def __init__(self) -> None:
        self.samples = 0

    def listed(self, samples: int) -> None:
        self.samples += samples


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder of two samples."""
    return write_tree(tmp_path / "imgs", {"cat/1.jpg": b"abc", "dog/2.jpg": b"x" * 3000})


def test_every_verb_accepts_keyword_arguments() -> None:
    """Every function with an options object accepts its options as keyword arguments; `help` lists them."""
    functions = {name: one for name in shardtool.__all__ if signatures.isfunction(one := getattr(shardtool, name))}
    takes = {name for name, one in functions.items() if "options" in signatures.signature(one).parameters}
    assert takes == {*VERBS}
    for name, kind in VERBS.items():
        verb = getattr(shardtool, name)
        known = signatures.signature(verb).parameters
        assert {one.name for one in fields(kind)} <= {*known}
        assert all(known[one].kind is signatures.Parameter.KEYWORD_ONLY for one in option_specs(kind))
        assert all(f"\n    {one}: {text}" in verb.__doc__ for one, text in option_texts(kind).items())
        assert all(text for one, text in option_texts(kind).items())
        assert pickle.loads(pickle.dumps(verb)) is verb  # noqa: S301 - ours


def test_keyword_arguments_equal_an_options_object(source: Path, tmp_path: Path) -> None:
    """Keyword arguments and an options object write the same bytes."""
    create(source, f"{tmp_path}/a/x-{{0..}}.tar", CreateOptions(max_size=8000, label_from_folder=True, workers=0))
    create(source, f"{tmp_path}/b/x-{{0..}}.tar", max_size=8000, label_from_folder=True, workers=0)
    create(source=source, output=f"{tmp_path}/c/x-{{0..}}.tar", max_size=8000, label_from_folder=True, workers=0)  # type: ignore[call-arg]
    assert read_tree(tmp_path / "a") == read_tree(tmp_path / "b") == read_tree(tmp_path / "c")
    create(source, f"{tmp_path}/d/x-{{0..}}.tar", CreateOptions(max_size=9000, workers=0), max_size=8000,
           label_from_folder=True)  # fmt: skip
    assert read_tree(tmp_path / "a") == read_tree(tmp_path / "d"), "a keyword overrides the object"
    assert verify(tmp_path / "b/x.json", quick=True, workers=0).sound


def test_an_observer_can_be_passed_in_three_ways(source: Path) -> None:
    """An observer works with keyword arguments, with an options object, and inside it."""
    heard = [_Heard(), _Heard(), _Heard()]
    create(source, "o-{0..}.tar", observer=heard[0], workers=0, dry_run=True)
    create(source, "o-{0..}.tar", CreateOptions(workers=0), observer=heard[1], dry_run=True)
    create(source, "o-{0..}.tar", CreateOptions(workers=0, observer=heard[2]), dry_run=True)
    assert [result.samples for result in heard] == [2, 2, 2]
    assert CreateOptions(workers=0, observer=heard[0]) == CreateOptions(workers=0)


@pytest.mark.parametrize(
    ("values", "same"),
    [
        ({"field": {"cls": "bi"}, "file": {"jpg": "path"}}, {"field": ("cls=bi",), "file": ("jpg=path",)}),
        ({"bytes": ["jpg=data"]}, {"bytes": {"jpg": "data"}}),
        ({"url": ("jpg=url",), "fields": {"b": "a"}}, {"url": {"jpg": "url"}, "rename_fields": ["b=a"]}),
        ({"fields": ["jpg", "-json"]}, {"select_fields": ("jpg",), "drop_fields": ["json"]}),
        ({"probe": True, "image": ["jpg"], "mask": ("png",)}, {"probe": True, "image": ("jpg",), "mask": ["png"]}),
    ],
)
def test_mappings_and_lists_equal_texts(values: dict[str, Any], same: dict[str, Any]) -> None:
    """A mapping, a list and a tuple of texts are the same."""
    assert CreateOptions(**values) == CreateOptions(**same)
    assert CreateOptions(**values).recorded() == CreateOptions(**same).recorded()


@pytest.mark.parametrize("kind", [CreateOptions, ReshardOptions])
def test_python_knows_all_names_of_the_command_line(kind: type[Any]) -> None:
    """Every command-line option has a Python name."""
    known = {name: one for name, one in option_specs(kind).items() if not one.parent}
    typed = {(one.cli_names.split("/")[0] or name).replace("-", "_") for name, one in known.items()}
    assert typed - {one.name for one in fields(kind)} <= {one.replace("-", "_") for one in _ONLY_PYTHON}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_siz": 1}, "create: no option 'max_siz'; expected max_size or "),
        ({"zzz": 1}, "create: no option 'zzz'. help(shardtool.CreateOptions) lists all options."),
        ({"options": CreateOptions(), "shuffle": "yes"}, "shuffle: 'yes'; expected True or False"),
        (
            {"options": {"shuffle": True}},
            "options: dict; expected CreateOptions(...), or keyword arguments. Pass a dict as **options.",
        ),
        ({"options": VerifyOptions()}, "options: VerifyOptions; expected CreateOptions(...), or keyword arguments"),
        (
            {"overwrite": True, "append": True},
            "overwrite: used with append, which keeps the dataset; expected only one of them",
        ),
        (
            {"overwrite": True, "update": True},
            "overwrite: used with update, which keeps the dataset; expected only one of them",
        ),
        ({"include": 5}, "include: 5; expected a string, or several"),
        ({"include": (b"*.jpg",)}, "include: (b'*.jpg',); expected a string, or several"),
        ({"field": (None,)}, "field: (None,); expected a string, or several"),
        ({"classes": {"cls": 1}}, "classes: {'cls': 1}; expected a string, or several"),
        ({"split": 0.5}, "split: 0.5; expected shares such as train=0.8"),
        ({"seed": None}, "seed: None; expected a whole number from"),
    ],
)
def test_invalid_calls_are_refused(values: dict[str, Any], message: str, source: Path, tmp_path: Path) -> None:
    """Unknown names, two requests in one call and wrong options objects are errors; no file is written."""
    with pytest.raises(InvalidRequest) as caught:
        create(source, f"{tmp_path}/o/x-{{0..}}.tar", **values)
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("values", "same"),
    [
        ({"include": "*.jpg"}, {"include": ("*.jpg",)}),
        ({"url": "jpg=a,b"}, {"url": ("jpg=a,b",)}),
        ({"target": "dali,webdataset"}, {"target": ("dali", "webdataset")}),
        ({"rename_fields": "a=b,c=d"}, {"rename_fields": ("a=b", "c=d")}),
        ({"select_fields": "jpg"}, {"select_fields": ["jpg"]}),
        ({"include": None, "field": None, "shuffle": None, "overwrite": None}, {}),
    ],
)
def test_a_single_string_is_a_list(values: dict[str, Any], same: dict[str, Any]) -> None:
    """A single string is accepted instead of a list, and None means that the option is not given."""
    assert CreateOptions(**values) == CreateOptions(**same)
    assert CreateOptions(**values).recorded() == CreateOptions(**same).recorded()


def test_the_writer_accepts_options_like_a_verb(tmp_path: Path) -> None:
    """`ShardWriter` accepts keyword arguments, an options object, or both; `help` and type checkers know the same."""
    calls: dict[str, tuple[Any, dict[str, Any]]] = {
        "a": (None, {"max_count": 1}),
        "b": (WriterOptions(max_count=1), {}),
        "c": (WriterOptions(max_count=3), {"max_count": 1}),
    }
    for name, (options, named) in calls.items():
        with ShardWriter(f"{tmp_path}/{name}/x-{{0..}}.tar", options, **named) as writer:
            for key in "kl":
                writer.write({"__key__": key, "txt": key})
    assert read_tree(tmp_path / "a") == read_tree(tmp_path / "b") == read_tree(tmp_path / "c")
    assert {field.name for field in fields(WriterOptions)} <= {*signatures.signature(ShardWriter).parameters}
    assert "\n    max_count: " in (ShardWriter.__init__.__doc__ or "")
    hints = get_type_hints(WriterOptions)
    names = [*option_specs(WriterOptions), "storage_options"]
    assert get_type_hints(WriterKeywords) == {name: hints[name] for name in names}


def test_the_writer_refuses_names_in_the_same_words(tmp_path: Path) -> None:
    """`ShardWriter` refuses unknown names with the same message."""
    with pytest.raises(InvalidRequest, match=r"^ShardWriter: no option 'max_sise'; expected max_size$"):
        ShardWriter(f"{tmp_path}/x-{{0..}}.tar", max_sise=3)  # type: ignore[call-arg]


def test_wrong_positional_arguments_are_type_errors(source: Path) -> None:
    """A missing or duplicate argument is a TypeError."""
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'output'"):
        create(source, shuffle=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="multiple values"):
        create(source, "x-{0..}.tar", None, options=None)  # type: ignore[misc]


_USERS = """\
import shardtool
from shardtool import CreateOptions

class Heard(shardtool.Observer): ...

shardtool.create("imgs", "out-{0..}.tar", max_size="1MB", label_from_folder=True, include=["*.jpg"], target=["dali"])
shardtool.create("imgs", "out-{0..}.tar", bytes={"jpg": "data"}, observer=Heard(), overwrite=True)
shardtool.create("imgs", "out-{0..}.tar", CreateOptions(shuffle=True), observer=Heard())
shardtool.create("imgs", "out-{0..}.tar", CreateOptions(), shuffle=True)
count: int = shardtool.create("imgs", "out-{0..}.tar").samples
planned: str = shardtool.create("imgs", "out-{0..}.tar", dry_run=True).planned[0].name
sound: bool = shardtool.verify("out.json", quick=True, seed=None).sound
shardtool.copy("out.json", "there", overwrite=True)
shardtool.export("out.json", ["wids"], output="there")
shardtool.create("imgs", "out-{0..}.tar", max_sise="1MB")
shardtool.create("imgs", "out-{0..}.tar", shuffle="yes")
shardtool.create("imgs", "out-{0..}.tar", oversize="alon")
shardtool.create("imgs", 7, shuffle=True)
shardtool.create("imgs", "out-{0..}.tar", {"shuffle": True})
shardtool.verify("out.json", place="hash")
text: str = shardtool.reshard("out.json", "new-{0..}.tar", shards=3)
"""


@pytest.mark.slow
def test_mypy_checks_calls_of_users(tmp_path: Path) -> None:
    """A type checker finds wrong names, types and results in a user's file, and nothing else."""
    (tmp_path / "users.py").write_text(_USERS)
    config = tmp_path / "mypy.ini"
    config.write_text(
        f"[mypy]\nstrict = True\nmypy_path = {REPO}\ncache_dir = {tmp_path}/cache\nfollow_imports = silent\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "users.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    first = _USERS.splitlines().index('shardtool.create("imgs", "out-{0..}.tar", max_sise="1MB")') + 1
    lines = {int(line.split(":")[1]) for line in run.stdout.splitlines() if ": error:" in line}
    assert lines == {*range(first, len(_USERS.splitlines()) + 1)}, run.stdout
    texts = [line.split(": error: ")[1] for line in run.stdout.splitlines() if ": error: " in line]
    assert texts[:3] == [
        'Unexpected keyword argument "max_sise" for "__call__" of "VerbOfTwo"; did you mean "max_size"?  [call-arg]',
        'Argument "shuffle" to "__call__" of "VerbOfTwo" has incompatible type "str"; expected "bool"  [arg-type]',
        (
            """Argument "oversize" to "__call__" of "VerbOfTwo" has incompatible type "Literal['alon']"; """
            """expected "Literal['error', 'alone', 'skip']"  [arg-type]"""
        ),
    ]
    assert max(map(len, run.stdout.splitlines())) < 300, run.stdout


@pytest.mark.parametrize("wrong", [5, None, [5], b"x"])
def test_every_verb_refuses_wrong_types_of_names(wrong: Any, tmp_path: Path) -> None:
    """A number or bytes instead of a dataset, output or folder is an invalid request."""
    file = tmp_path / "o.json"
    number: Any = wrong or 5
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"x")
    shardtool.create(tmp_path / "in", f"{tmp_path}/o-{{0..}}.tar", workers=0)
    calls: list[Callable[[], object]] = [
        lambda: shardtool.create(tmp_path / "in", wrong),
        lambda: shardtool.reshard(wrong, f"{tmp_path}/n-{{0..}}.tar"),
        lambda: shardtool.index(wrong),
        lambda: shardtool.remove(wrong, where="key == 'a'"),
        lambda: shardtool.copy(file, wrong),
        lambda: shardtool.diff(file, wrong),
        lambda: shardtool.extract(file, wrong),
        lambda: shardtool.extract(file, tmp_path / "out", where=number),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest):
            call()
