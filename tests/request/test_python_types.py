"""Options with Python types instead of text."""

from __future__ import annotations

import inspect as signatures
import json
import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

import shardtool
from shardtool import CreateOptions, IndexOptions, InvalidRequest, ReshardOptions, VerifyOptions, create, index
from shardtool.dataset.dataset_file import parse_dataset
from tests import mapped
from tests.helpers import read_tree, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"field": {"cls": "bi", "txt": "a=b"}}, {"field": ("cls=bi", "txt=a=b")}),
        ({"file": {"jpg": "path"}, "bytes": {}}, {"file": ("jpg=path",)}),
        ({"split": {"train": 0.75, "val": 0.25}}, {"split": "train=0.75,val=0.25"}),
        ({"map": mapped.doubled}, {"map": "tests.mapped:doubled"}),
        ({"resize": (640, 480)}, {"resize": "640x480"}),
    ],
)
def test_python_types_equal_texts(values: dict[str, Any], text: dict[str, Any]) -> None:
    """Python values give the same recorded options as texts."""
    assert CreateOptions(**values).recorded() == CreateOptions(**text).recorded()
    assert json.loads(json.dumps(CreateOptions(**values).recorded())) == CreateOptions(**values).recorded()


def test_other_verbs_accept_python_types() -> None:
    """`reshard` accepts pairs and shares, `verify` a function."""
    options = ReshardOptions(rename_fields={"jpg": "jpeg"}, field={"cls": "bi"}, split={"a": 0.5, "b": 0.5})
    recorded = {name: options.recorded()[name] for name in ("rename_fields", "values", "split")}
    assert recorded == {"rename_fields": ["jpeg=jpg"], "values": ["cls=bi"], "split": "a=0.5,b=0.5"}
    assert VerifyOptions(source="s", repair=True, map=mapped.doubled).map == "tests.mapped:doubled"


def _local(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


_local.__qualname__ = "elsewhere"


@pytest.mark.parametrize("function", [lambda one: one, partial(mapped.doubled), _local, mapped.payload("", 1).upper])
def test_a_function_must_be_importable(function: Any) -> None:
    """A function that workers cannot import is refused with a fix."""
    with pytest.raises(InvalidRequest, match=r"^map: .* cannot be imported by this name; .*top level of a module"):
        CreateOptions(map=function)


@pytest.mark.parametrize("module", ["__main__", "__mp_main__"])
def test_a_function_of_the_script_itself_is_refused(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of the script is refused, because workers have another `__main__`."""
    monkeypatch.setattr(mapped.doubled, "__module__", module)
    monkeypatch.setitem(sys.modules, module, mapped)
    with pytest.raises(InvalidRequest, match="cannot be imported by this name"):
        CreateOptions(map=mapped.doubled)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"field": {"a=b": "c"}}, "field: 'a=b': 'c'; expected two strings, the first without an equals sign"),
        ({"file": {"jpg": 1}}, "file: 'jpg': 1; expected two strings"),
        ({"field": "cls"}, "field: 'cls'; expected FIELD=COLUMN"),
        ({"split": {"a": 0.5}}, "split: shares with the sum 0.5"),
        ({"split": {"a b": 1}}, "split: invalid split names"),
        ({"resize": (1, 2, 3)}, "resize: '1x2x3'"),
    ],
)
def test_invalid_python_values_are_refused(values: dict[str, Any], message: str) -> None:
    """Invalid Python values are refused with the option's name."""

    def ask() -> None:
        options = CreateOptions(**values)
        options.make_split_options()
        options.recorded()

    with pytest.raises(InvalidRequest) as caught:
        ask()
    assert str(caught.value).startswith(message)


def test_a_dataframe_writes_the_same_shards_as_a_csv(tmp_path: Path) -> None:
    """A DataFrame gives the same bytes as a CSV with options on the command line."""
    table = pd.DataFrame({"key": ["a", "b", "c"], "path": ["1.txt", "2.txt", "3.txt"], "bi": ["dog", "cat", "dog"]})
    root = write_tree(tmp_path / "s", {f"{at}.txt": b"%d" % at for at in (1, 2, 3)})
    table.to_csv(root / "t.csv", index=False)
    options = CreateOptions(root=root, field={"cls": "bi"}, classes=("cls",), map=mapped.doubled, workers=0)
    create(table, f"{tmp_path}/one/x-{{0..}}.tar", options)
    words = ("--field", "cls=bi", "--classes", "cls", "--map", "tests.mapped:doubled", "--workers", "0", "--json")
    ran = typed("create", root / "t.csv", f"{tmp_path}/two/x-{{0..}}.tar", *words)
    assert ran.code == 0, ran.err
    tree_one, tree_two = read_tree(tmp_path / "one"), read_tree(tmp_path / "two")
    assert tree_one["x-0.tar"] == tree_two["x-0.tar"]
    made = [parse_dataset(tree["x.json"], "x.json").run.options for tree in (tree_one, tree_two)]
    assert made[0] == made[1] == {"field": ["cls=bi"], "classes": ["cls"], "map": "tests.mapped:doubled"}


def test_folders_can_be_path_objects(tmp_path: Path) -> None:
    """A folder may be a path object."""
    write_tree(tmp_path / "s", {"a.txt": b"1"})
    create(tmp_path / "s", f"{tmp_path}/d/in/x-{{0..}}.tar", CreateOptions(workers=0))
    result = index(tmp_path / "d/in", IndexOptions(output=tmp_path / "d", workers=0))
    assert result.dataset_file == f"{tmp_path}/d/x.json"


_WITH_OPTIONS = sorted(
    name for name in shardtool.__all__
    if signatures.isfunction(verb := getattr(shardtool, name)) and "options" in signatures.signature(verb).parameters
)  # fmt: skip


@pytest.mark.parametrize("verb", _WITH_OPTIONS)
def test_options_of_another_kind_are_refused(verb: str, tmp_path: Path) -> None:
    """Every verb refuses a dict and options of another verb."""
    run = getattr(shardtool, verb)
    kind = str(signatures.signature(run).parameters["options"].annotation).partition(" ")[0]
    needed = [
        parameter for parameter in signatures.signature(run).parameters.values() if parameter.default is parameter.empty
    ]
    arguments = [
        str(tmp_path / "out-{0..}.tar") for parameter in needed if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    wrong_options: object = VerifyOptions() if verb not in ("verify", "repair") else IndexOptions()
    for options, text in (
        ({"max_size": "1MB"}, f"options: dict; expected {kind}"),
        (wrong_options, f"expected {kind}"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            run(*arguments, options=options)
        assert text in str(refused.value)
    assert not [*tmp_path.iterdir()]


def test_a_users_type_checker_sees_types(tmp_path: Path) -> None:
    """The package has a py.typed marker, so mypy uses its types."""
    (tmp_path / "user.py").write_text("from shardtool import CreateOptions\n", encoding="ascii")
    words = [sys.executable, "-m", "mypy", "--follow-imports=skip", "--cache-dir", os.devnull, "user.py"]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
