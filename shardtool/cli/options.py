"""Options that several verbs share, and the types that turn their text into values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from shardtool.errors import InvalidRequest
from shardtool.sample import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

Command = TypeVar("Command", bound="Callable[..., Any]")


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """Bytes: `500MB`, `1.5GiB`, `1000000`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes that `value` means."""
        try:
            return parse_size(value)
        except InvalidRequest as error:
            self.fail(f"{error.found}: {value!r}, expected {error.expected}", param, ctx)


class Sectioned(click.Command):
    """A command whose help shows its options in sections: each starts at the option that `SECTIONS` names."""

    SECTIONS: ClassVar[dict[str, str]] = {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, a section at a time."""
        sections: list[tuple[str, list[tuple[str, str]]]] = []
        for param in self.get_params(ctx):
            title = self.SECTIONS.get(param.name or "")
            if title or not sections:
                sections.append((title or "Options", []))
            if record := param.get_help_record(ctx):
                sections[-1][1].append(record)
        for title, records in sections:
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def common(command: Command) -> Command:
    """Add what every verb has."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Tell of every shard."),
        click.option("--quiet", is_flag=True, help="No progress, no summary, no notes."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout."),
        click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes. [default: the cores]"),
    ):
        command = option(command)
    return command
