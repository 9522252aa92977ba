"""Options with choices, defined by the annotation of the field."""

from __future__ import annotations

from typing import Any

import click
import pytest

from shardtool import CreateOptions, IndexOptions, InvalidRequest, ReshardOptions, VerifyOptions
from shardtool.cli import cli
from shardtool.interop.exports import EXPORTS
from shardtool.messages import option_text
from shardtool.request.option_spec import has_option_type, option_choices, option_specs, option_types

CLASSES: dict[str, Any] = {
    "create": CreateOptions, "reshard": ReshardOptions, "verify": VerifyOptions, "index": IndexOptions,
}  # fmt: skip
CHOSEN = [(verb, name) for verb, kind in CLASSES.items() for name in option_types(kind) if option_choices(kind, name)]


MORE: dict[tuple[str, str], dict[str, Any]] = {
    ("verify", "symlinks"): {"source": "x"},
    ("create", "on_duplicate"): {"append": True},
    ("create", "robots"): {"url": ("jpg=url",)},
    ("create", "require"): {"url": ("jpg=url",)},
    ("create", "trust"): {"resume": True},
    ("reshard", "trust"): {"resume": True},
}


@pytest.mark.parametrize(("verb", "name"), CHOSEN)
def test_only_the_choices_are_accepted(verb: str, name: str) -> None:
    """Library and command line accept the choices of the annotation and no others."""
    kind = CLASSES[verb]
    several = isinstance(getattr(kind(), name), tuple)
    for text in option_choices(kind, name):
        values = {name: (text,) if several else text}
        more = MORE.get((verb, name), {})
        assert getattr(kind(**values, **more), name) == values[name]
    with pytest.raises(InvalidRequest, match=option_text(name)):
        kind(**{name: ("odd",) if several else "odd"})
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    offered = [choice_type.type for choice_type in command.params if choice_type.name == name]
    words = option_specs(kind)[name].cli_choices
    for choice_type in offered:
        assert isinstance(choice_type, click.Choice)
        assert tuple(words.get(choice, choice) for choice in choice_type.choices) == option_choices(kind, name)
    assert offered or name == "start_method"


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("max_count", 4, True), ("max_count", 2**63, False), ("max_count", True, False), ("max_count", "4", False),
        ("max_count", None, False), ("shuffle", True, True), ("shuffle", 1, False), ("max_removed", 1, True),
        ("include", ["a"], True), ("include", "a", False), ("include", [1], False), ("where", ["a"], False),
        ("symlinks", "odd", True), ("where", {}, False), ("resize", 256, True), ("resize", "256", True),
    ],
)  # fmt: skip
def test_values_from_json(name: str, value: object, right: bool) -> None:  # noqa: FBT001 - a column of a table
    """A recorded value fits an option if it has its type; choices are checked by the options class."""
    assert has_option_type(value, CreateOptions, name) == right


def test_export_names_are_those_of_the_formats() -> None:
    """The option `export` accepts the formats that exist."""
    assert option_choices(CreateOptions, "export") == (*EXPORTS,)


@pytest.mark.parametrize(("value", "shown"), [(("a", "b"), "'a,b'"), (["a"], "'a'"), ([], "'...'")])
def test_a_list_for_a_single_value_is_refused(value: Any, shown: str) -> None:
    """A list or None for a single value is refused with an example."""
    with pytest.raises(InvalidRequest, match=f"meta: .*; expected one string, such as {shown}"):
        CreateOptions(meta=value)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"on": ""}, "on"),
        ({"classes_from": ""}, "classes_from"),
        ({"split": "a=0.5,b=0.5", "split_column": ""}, "split_column"),
        ({"stratify": "x", "split": ""}, "split"),
        ({"address": ""}, "address"),
    ],
)
def test_an_empty_string_counts_as_given(values: dict[str, Any], named: str) -> None:
    """An option with an empty text, for example from an unset shell variable, counts as given."""
    with pytest.raises(InvalidRequest, match=named):
        CreateOptions(**values)


def test_an_explicit_default_is_the_default() -> None:
    """Equal sizes in different spellings are the same request."""
    assert not CreateOptions(max_file_size="100MB").is_given("max_file_size")
    assert CreateOptions(url=("jpg=url",), max_file_size="100MB").recorded() == {"urls": ["jpg=url"]}
    assert CreateOptions(max_file_size="0.1GB").recorded() == {}


def test_tables_are_not_formatted() -> None:
    """Checking whether a table is given does not format it."""

    class Table:
        def __str__(self) -> str:
            raise RuntimeError

    assert CreateOptions(join=Table(), on="id").on == "id"


@pytest.mark.parametrize(
    ("kind", "values"), [(CreateOptions, {"exclude": ["\ud800"]}), (ReshardOptions, {"where": "\ud800 == 1"})]
)
def test_lone_surrogates_are_refused(kind: type, values: dict[str, Any]) -> None:
    """Lone surrogates are refused, except those of file names that are not UTF-8."""
    with pytest.raises(InvalidRequest, match="valid Unicode text"):
        kind(**values)
    assert CreateOptions(exclude=["\udcff*"]).exclude == ("\udcff*",)


@pytest.mark.parametrize("values", [{"shuffle": "no"}, {"overwrite": "no"}, {"update": 1}, {"stat": "false"}])
def test_a_flag_is_true_or_false(values: dict[str, Any]) -> None:
    """A flag accepts only True and False, because the text `no` would count as true."""
    with pytest.raises(InvalidRequest, match="True or False"):
        CreateOptions(**values)


@pytest.mark.parametrize("patterns", [iter(["cat/*"]), {"cat/*"}, (one for one in ["cat/*"])])
def test_iterators_are_read_once(patterns: Any) -> None:
    """Iterators and other iterables become tuples."""
    assert CreateOptions(include=patterns).include == ("cat/*",)
