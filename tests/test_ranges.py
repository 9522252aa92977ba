from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click
import pytest

from shardtool import CreateOptions, InvalidRequest
from shardtool.cli import cli
from shardtool.cli.reshard import divide_arguments
from shardtool.execute.local import LocalPool, cores
from shardtool.pattern import parse_pattern
from shardtool.ranges import MOST_WORKERS, RANGES
from shardtool.sample import parse_size
from shardtool.verbs.index import export
from shardtool.verbs.options import OutputOptions
from shardtool.verbs.rebuild import IndexOptions
from shardtool.verbs.reshard import ReshardOptions
from shardtool.verbs.summary import InspectOptions
from shardtool.verbs.verify import VerifyOptions

if TYPE_CHECKING:
    from pathlib import Path

CLASSES: tuple[type, ...] = (OutputOptions, CreateOptions, ReshardOptions, InspectOptions, VerifyOptions, IndexOptions)
ODD = ("0", "-1", "2147483648", "9223372036854775808", "18446744073709551616", "9" * 400, "9" * 5000, "nan", "inf",
       "1e999GB", "²", "٣", "0x10", "1_0", "", " ")  # fmt: skip
WORDS = {"create": ["in", "o/x-{0..}.tar"], "reshard": ["ds", "o/x-{0..}.tar"]}


def _numeric() -> list[tuple[str, str]]:
    """Return (verb, option) for all options that take numbers or sizes."""
    found = []
    for verb in ("create", "inspect", "verify", "reshard", "index"):
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        found += [
            (verb, one.opts[0]) for one in command.params
            if isinstance(one, click.Option) and one.type.name in ("integer", "size", "integer range", "float")
        ]  # fmt: skip
    return [*found, ("create", "--resize"), ("create", "--split"), ("reshard", "--sample"), ("reshard", "--split")]


def _run(words: list[str]) -> int:
    """Return the exit code of a command line, run in this process."""
    from shardtool.cli import _run as run

    return run(words)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a source and a dataset in an otherwise empty current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a")
    (tmp_path / "in" / "b.txt").write_text("b")
    assert _run(["create", "in", "ds/x-{0..}.tar", "--quiet", "--workers", "1"]) == 0
    return tmp_path


@pytest.mark.parametrize(("verb", "option"), _numeric())
def test_no_number_breaks_a_verb(verb: str, option: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every number, and what only looks like one, is taken or refused by the option's name: no other way out."""
    for value in ODD:
        words = [verb, *WORDS.get(verb, ["ds"]), option, f"a={value},b=1" if option == "--split" else value]
        if verb in WORDS:
            words += ["--dry-run"]
            words[2] = words[2].replace("x-", "{split}-") if option == "--split" else words[2]
            words += {"--quality": ["--encode", "jpg"], "--seed": ["--shuffle"]}.get(option, [])
        if option != "--workers":
            words += ["--workers", "1"] if verb != "inspect" else []
        assert _run(words) in (0, 2, 6), (value, words)
    assert "Traceback" not in capsys.readouterr().err
    assert place.is_dir()


@pytest.mark.parametrize("kind", CLASSES)
def test_the_library_has_the_same_ranges(kind: type) -> None:
    """What the command line refuses, the library does: by the option's name, whatever the type of the value."""
    names = [one.name for one in fields(kind) if one.name in RANGES and one.name != "quality"]
    assert names
    for name in names:
        least, most = RANGES[name]
        for value in (least - 1, most + 1, 10**5000, -(10**5000), float("nan"), 1.5, "1", b"1"):
            with pytest.raises(InvalidRequest, match=f"--{name.replace('_', '-')}: .*; expected a whole number from"):
                kind(**{name: value})
        for value in (least, most):
            assert getattr(kind(**{name: value}), name) == value
    with pytest.raises(InvalidRequest, match="--workers"):
        export("x.json", "wids", workers=0)


def test_sizes_end_at_an_exabyte() -> None:
    """A size is from 1 byte to 10^18, as text or as a number."""
    assert parse_size("1000PB") == parse_size(10**18) == 10**18
    for value in ("1001PB", 10**18 + 1, 10**5000, "9" * 5000, "99999999999999PB"):
        with pytest.raises(InvalidRequest, match="too large a size|no size"):
            parse_size(value)
    with pytest.raises(InvalidRequest, match="too large a size"):
        CreateOptions(max_size="99999999999999PB")


@pytest.mark.parametrize(
    "name", ["x-{0..%s}.tar" % ("9" * 5000), "x-{%s..}.tar" % ("9" * 19), "x-%0999999999d.tar", "x-<0..%s>.tar" % ("9" * 400)]
)
def test_numbers_in_patterns_are_bounded(name: str) -> None:
    """A pattern's numbers have at most 18 digits, and its width fits into a name."""
    with pytest.raises(InvalidRequest, match="a number that no shard can have"):
        parse_pattern(name)


def test_several_patterns_are_bounded() -> None:
    """Patterns that mean more names than can be held are refused; a name with a long number is a name."""
    with pytest.raises(InvalidRequest, match="more than 1,000,000 names"):
        parse_pattern(["a-{0..9999999999}.tar", "b-{0..1}.tar"])
    long = f"a{'1' * 5000}.tar"
    with pytest.raises(click.UsageError):
        divide_arguments((long, long))


def _pid(_task: Any) -> int:
    import os

    return os.getpid()


def test_no_more_workers_than_tasks() -> None:
    """However many workers may be used, beyond the cores there is one for a task that waits, and no more."""
    for tasks in (1, cores() + 2):
        with LocalPool(MOST_WORKERS) as pool:
            assert len(pool._workers) == min(MOST_WORKERS, cores())
            found = [pid for _, pid in pool.map(_pid, range(tasks))]
            assert len(found) == tasks
            assert len(pool._workers) == max(tasks, cores())
    with LocalPool(1) as pool:
        assert len({pid for _, pid in pool.map(_pid, range(5))}) == 1
