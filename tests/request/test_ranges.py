"""Ranges of numbers in options and patterns."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click
import pytest

from shardtool import CreateOptions, ExportOptions, InspectOptions, InvalidRequest
from shardtool.cli import cli, command_options
from shardtool.cli.arguments import split_datasets
from shardtool.cli.click_options import parse_cli_value
from shardtool.entries.strings import PackedStrings
from shardtool.execute.local_pool import LocalPool, usable_cores
from shardtool.messages import cli_name, use_cli_names
from shardtool.pattern import parse_pattern
from shardtool.request.create_options import ReshardOptions
from shardtool.request.dataset_options import IndexOptions, VerifyOptions
from shardtool.request.option_spec import cli_spellings, option_specs
from shardtool.request.output_options import MAX_WORKERS, OutputOptions
from shardtool.request.split_options import parse_shares
from shardtool.select.splits import sample_by_key
from shardtool.units import parse_size
from shardtool.verbs.export import export

CLASSES: tuple[type, ...] = (OutputOptions, CreateOptions, ReshardOptions, InspectOptions, VerifyOptions, IndexOptions)
KINDS: dict[str, type] = {
    "create": CreateOptions, "reshard": ReshardOptions, "verify": VerifyOptions, "index": IndexOptions,
    "inspect": command_options.InspectViewOptions,
}  # fmt: skip
PARTNERS: dict[str, object] = {"url": ("jpg=url",), "sample": "10%", "resize": 8}  # for options that need them

ODD = ("0", "-1", "2147483648", "9223372036854775808", "18446744073709551616", "9" * 400, "9" * 5000, "nan", "inf",
       "1e999GB", "²", "٣", "0x10", "1_0", "", " ")  # fmt: skip


def _numeric() -> list[tuple[str, str]]:
    """Return (verb, option) for all options that take numbers or sizes."""
    options = [(verb, name, spec) for verb, kind in KINDS.items() for name, spec in option_specs(kind).items()]
    return [(verb, name) for verb, name, spec in options if spec.range or spec.form == "size"]


@pytest.mark.parametrize(("verb", "name"), _numeric())
def test_any_number_is_accepted_or_refused(verb: str, name: str) -> None:
    """Any number is accepted within the range of its option, or refused with its name."""
    command, kind = cli.get_command(click.Context(cli), verb), KINDS[verb]
    assert command is not None
    spec = option_specs(kind)[name]
    more = {need.conditions[0].name: PARTNERS[need.conditions[0].name] for need in spec.needs()}
    for value in ODD:
        typed = command.make_context(verb, ["a", "b", cli_spellings(kind, name)[0], value]).params
        number = None
        with use_cli_names(), suppress(InvalidRequest):
            number = getattr(kind(**{name: parse_cli_value(kind, name, typed)}, **more), name)
        if number is None:
            with use_cli_names(), pytest.raises(InvalidRequest, match=cli_name(name)):
                kind(**{name: parse_cli_value(kind, name, typed)}, **more)
        else:
            minimum, maximum = spec.range or (1, 10**18)
            assert minimum <= (parse_size(number) if spec.form == "size" else number) <= maximum


def test_any_share_or_image_size_is_accepted_or_refused() -> None:
    """Any share or image size is accepted within its range, or refused with the name of its option."""
    for value in ODD:
        with suppress(InvalidRequest):
            CreateOptions(resize=value).recorded()
        with suppress(InvalidRequest):
            sample_by_key(PackedStrings.of([b"a"]), value)
        with suppress(InvalidRequest):
            parse_shares(f"a={value},b=1")
    with pytest.raises(InvalidRequest, match="resize: '65536'"):
        CreateOptions(resize=65536).recorded()


@pytest.mark.parametrize("kind", [CreateOptions, ReshardOptions, VerifyOptions])
def test_a_sample_share_is_above_0_and_at_most_1(kind: type) -> None:
    """`sample` is a share above 0 and at most 1 in every verb."""
    wrong: list[Any] = ["0", "0%", "1.5", "101%", "-1", "", 0, 2, "some"]
    for value in wrong:
        with pytest.raises(InvalidRequest, match=r"^sample: '.*'; expected a share above 0 and at most 1, such as"):
            kind(sample=value)
    right: list[Any] = ["1", "100%", "1e-3", 1e-05, " 5 % ", ".5", 1]
    for value in right:
        assert kind(sample=value).sample == value


@pytest.mark.parametrize("kind", CLASSES)
def test_the_library_has_the_same_ranges(kind: type) -> None:
    """The library refuses the same values as the command line."""
    ranges = {name: (*spec.range, spec.needs()) for name, spec in option_specs(kind).items() if spec.range}
    assert ranges
    for name, (minimum, maximum, requires) in ranges.items():
        more = {need.conditions[0].name: PARTNERS[need.conditions[0].name] for need in requires}
        for value in (minimum - 1, maximum + 1, 10**5000, -(10**5000), float("nan"), 1.5, "1", b"1"):
            with pytest.raises(InvalidRequest, match=rf"^{name}: .*; expected a whole number from"):
                kind(**{name: value}, **more)
        for value in (minimum, maximum):
            assert getattr(kind(**{name: value}, **more), name) == value
    with pytest.raises(InvalidRequest, match="workers"):
        export("x.json", "wids", ExportOptions(workers=-1))


def test_sizes_are_at_most_one_exabyte() -> None:
    """A size is from 1 byte to 10^18 bytes."""
    assert parse_size("1000PB") == parse_size(10**18) == 10**18
    for value in ("1001PB", 10**18 + 1, 10**5000, "9" * 5000, "99999999999999PB"):
        with pytest.raises(InvalidRequest, match=r"size too large|invalid size"):
            parse_size(value)
    with pytest.raises(InvalidRequest, match="size too large"):
        CreateOptions(max_size="99999999999999PB")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"x-{{0..{'9' * 5000}}}.tar", "number too long; expected at most 18 digits"),
        (f"x-{{{'9' * 19}..}}.tar", "number too long; expected at most 18 digits"),
        (f"x-<0..{'9' * 400}>.tar", "number too long; expected at most 18 digits"),
        ("x-%0999999999d.tar", "numbers of 999999999 digits; expected at most 240"),
    ],
)
def test_numbers_in_patterns_are_bounded(name: str, message: str) -> None:
    """Numbers in patterns have at most 18 digits, and names have a maximum length."""
    with pytest.raises(InvalidRequest, match=message):
        parse_pattern(name)


def test_several_patterns_are_bounded() -> None:
    """Patterns with too many names are refused; a name with a long number is accepted."""
    with pytest.raises(InvalidRequest, match="more than 1,000,000 names"):
        parse_pattern(["a-{0..9999999999}.tar", "b-{0..1}.tar"])
    long = f"a{'1' * 5000}.tar"
    assert split_datasets((long, long)) == ([[long]], [long])


def _pid(_task: Any) -> int:
    import os

    return os.getpid()


def test_no_more_workers_than_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the number of cores, there is at most one worker per task."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1}, raising=False)
    for tasks in (1, usable_cores() + 2):
        with LocalPool(MAX_WORKERS) as pool:
            assert len(pool._workers) == min(MAX_WORKERS, usable_cores())  # noqa: SLF001 - no process tells
            pids = [pid for _, pid in pool.map(_pid, range(tasks))]
            assert len(pids) == tasks
            assert len(pool._workers) == max(tasks, usable_cores())  # noqa: SLF001
    with LocalPool(1) as pool:
        assert len({pid for _, pid in pool.map(_pid, range(5))}) == 1
