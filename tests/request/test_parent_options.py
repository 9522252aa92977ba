"""Options that combine others: `fields`, `fetch`, `split_by` and `sort_by`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import CreateOptions, InvalidRequest, ReshardOptions
from shardtool.cli import cli
from shardtool.cli.click_options import parse_cli_value
from shardtool.cli.help import VerbOption
from shardtool.messages import PARENT_FORMS, use_cli_names
from shardtool.request.option_spec import cli_spellings, option_specs
from shardtool.request.run_record import RunRecord, describe_differences, format_command_line

_URLS: dict[str, Any] = {"url": ("jpg=url",)}
_FETCHING = [name for name, one in option_specs(CreateOptions).items() if one.parent == "fetch"]


@pytest.mark.parametrize(
    ("parent", "members"),
    [
        ({"fields": "jpg,cls"}, {"select_fields": ("jpg", "cls")}),
        ({"fields": ("jpg", "cls")}, {"select_fields": ("jpg", "cls")}),
        ({"fields": "-json,-txt"}, {"drop_fields": ("json", "txt")}),
        ({"fields": "jpg=JPEG"}, {"rename_fields": ("jpg=JPEG",)}),
        ({"fields": {"jpg": "JPEG"}}, {"rename_fields": ("jpg=JPEG",)}),
        ({"fields": "cls,jpg=JPEG"}, {"select_fields": ("cls", "JPEG"), "rename_fields": ("jpg=JPEG",)}),
        ({"fields": "-json,jpg=JPEG"}, {"drop_fields": ("json",), "rename_fields": ("jpg=JPEG",)}),
        (
            {"fields": " jpg, cls ,-json, b = a"},
            {"select_fields": ("jpg", "cls", "a"), "drop_fields": ("json",), "rename_fields": ("b=a",)},
        ),
        ({"split_by": "bi"}, {"split_column": "bi"}),
        ({"split_by": "folder"}, {"split_from_folder": True}),
        ({"sort_by": "-width"}, {"sort_by": "width", "descending": True}),
        ({"fetch": "per-host=4,timeout=20"}, {"per_host": 4, "timeout": 20}),
        ({"fetch": {"per_host": 4, "retries": 0}}, {"per_host": 4, "retries": 0}),
        ({"fetch": "user-agent=us (a, b),robots=ignore"}, {"user_agent": "us (a, b)", "robots": "ignore"}),
        ({"fetch": ("allow-private", "max-file-size=1MB")}, {"allow_private": True, "max_file_size": "1MB"}),
    ],
)
def test_a_parent_option_sets_its_members(parent: dict[str, Any], members: dict[str, Any]) -> None:
    """An option that combines others sets them: options and records are equal."""
    more = _URLS if "fetch" in parent else {}
    options, same = CreateOptions(**parent, **more), CreateOptions(**members, **more)
    assert options == same == replace(options) == CreateOptions(**{**members, **parent, **more})
    assert options.recorded() == same.recorded()
    assert not {"fields", "fetch", "split_by"} & options.recorded().keys()


def test_reshard_can_split_by_a_column_named_folder() -> None:
    """With shards as source, `folder` is an ordinary column."""
    assert ReshardOptions(split_by="folder") == ReshardOptions(split_column="folder")


@pytest.mark.parametrize(
    ("values", "typed", "python"),
    [
        ({"fetch": "per-host=0", **_URLS}, "--fetch per-host: 0; expected a whole", "per_host: 0; expected a whole"),
        ({"fetch": "per-host=4"}, "--fetch per-host: no URLs", "per_host: no URLs"),
        ({"fetch": "hosts=4", **_URLS}, "--fetch: 'hosts'; expected keys connections, per-host", "fetch: 'hosts'"),
        ({"fetch": "per-host", **_URLS}, "--fetch: 'per-host'; expected per-host=VALUE", "fetch: 'per-host'"),
        ({"fetch": "allow-private=1", **_URLS}, "--fetch: 'allow-private' with a value; expected", "fetch: 'al"),
        ({"fetch": "retries=1,retries=2", **_URLS}, "--fetch: 'retries' more than once", "fetch: 'retries' more than"),
        ({"fetch": "", **_URLS}, "--fetch: ''; expected keys", "fetch: ''"),
        ({"fetch": 4, **_URLS}, "--fetch: 4; expected a string", "fetch: 4"),
        (
            {"fetch": "per-host=4", "per_host": 5, **_URLS},
            "--fetch: used with --per-host;",
            "fetch: used with per_host",
        ),
        (
            {"fields": "jpg", "select_fields": ("a",)},
            "--fields: used with --select-fields",
            "fields: used with select_",
        ),
        ({"fields": (1,)}, "--fields: (1,); expected a string", "fields: (1,)"),
        ({"fields": "=a"}, "--fields: '=a'; expected NEW=OLD", "rename_fields: '=a'"),
        ({"split_by": "bi", "split": "a=1"}, "--split-by: used with --split", "split_column: used with split"),
        (
            {"split_by": "folder", "split": "a=1"},
            "--split-by folder: used with --split",
            "split_from_folder: used with",
        ),
    ],
)
def test_errors_name_the_option_as_used(values: dict[str, Any], typed: str, python: str) -> None:
    """Errors name the option as the command line or Python calls it."""
    with use_cli_names(), pytest.raises(InvalidRequest) as refused:
        CreateOptions(**values)
    assert str(refused.value).startswith(typed)
    with pytest.raises(InvalidRequest) as refused:
        CreateOptions(**values)
    assert str(refused.value).startswith(python)


@given(st.lists(st.text(max_size=12), max_size=4), st.sampled_from(["fields", "fetch"]))
def test_any_text_is_parsed_or_refused(parts: list[str], parent: str) -> None:
    """Any text is accepted or refused as an invalid request."""
    try:
        CreateOptions(**{parent: tuple(parts)}, **_URLS)  # type: ignore[arg-type]
    except InvalidRequest as refused:
        assert refused.where in {*option_specs(CreateOptions)}  # noqa: PT017 - both outcomes are valid


def _made(verb: str, kind: type, words: list[str]) -> Any:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    typed = command.make_context(verb, ["a", "b", *words]).params
    values = {name: parse_cli_value(kind, name, typed) for name in option_specs(kind)}
    return kind(**{name: value for name, value in values.items() if value is not None})


@pytest.mark.parametrize(
    "values",
    [
        {"fields": "cls,JPEG=jpg,jpeg=jpg"}, {"fields": "-json"}, {"split_by": "folder"}, {"sort_by": "-width"},
        {"fetch": "per-host=4,require=image,user-agent=us (a, b)", **_URLS},
    ],
)  # fmt: skip
def test_a_recorded_run_can_be_typed_again(values: dict[str, Any]) -> None:
    """The command line in messages gives the options of the recorded run."""
    options = CreateOptions(**values)
    words = shlex.split(format_command_line(RunRecord({"verb": "create", "options": options.recorded()})))[1:]
    assert _made("create", CreateOptions, words).recorded() == options.recorded()
    assert not [word for word in words if word in ("--select-fields", "--rename-field", "--require", "--descending")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--select-fields JPG,cls --rename-field jpg=JPG", "--fields cls,jpg=JPG,JPG"),
        ("--drop-fields json,txt", "--fields -json,-txt"),
        ("--split-column bi", "--split-by bi"),
        ("--split-from-folder", "--split-by folder"),
        ("--sort-by width --descending", "--sort-by -width"),
        ("--url jpg=url --per-host 4 --require image --allow-private",
         "--url jpg=url --fetch per-host=4,require=image --fetch allow-private"),
        ("--target dali", "--for dali"),
        ("--size bytes --no-stat", "--size-column bytes --no-stat"),
    ],
)  # fmt: skip
def test_old_spellings_work(old: str, new: str) -> None:
    """Earlier spellings have the same meaning."""
    options, new_options = (_made("create", CreateOptions, words.split()) for words in (old, new))
    assert {**options.recorded(), "select_fields": 0} == {**new_options.recorded(), "select_fields": 0}
    assert set(options.select_fields) == set(new_options.select_fields)
    assert (options.per_host, options.allow_private, options.target) == (
        new_options.per_host,
        new_options.allow_private,
        new_options.target,
    )


def test_differences_name_options_as_used() -> None:
    """Differences of runs name options as typed, or by their Python names."""
    then, now = CreateOptions(fields="jpg").recorded(), CreateOptions(fields="-json,jpg=JPEG").recorded()
    with use_cli_names():
        differences = describe_differences(then, now)
    assert "--fields differs: not given before, now '-json'" in differences
    assert "--fields differs: not given before, now 'jpg=JPEG'" in differences
    assert "drop_fields differs: not given before, now 'json'" in describe_differences(then, now)


def test_a_member_is_hidden_and_its_parent_is_not() -> None:
    """Members are hidden command-line options; their parent is listed."""
    assert len(_FETCHING) == 12
    for verb, kind in (("create", CreateOptions), ("reshard", ReshardOptions)):
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        params = {param.name: param for param in command.params if isinstance(param, VerbOption)}
        for name in option_specs(kind):
            if name in PARENT_FORMS:
                assert params[name].hidden
                assert params[name].opts == cli_spellings(kind, name)
                parent = next(param for param in params.values() if f"--{PARENT_FORMS[name].split()[0]}" in param.opts)
                assert not parent.hidden
