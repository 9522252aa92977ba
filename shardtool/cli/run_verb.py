"""Run a command with progress on the terminal, and print its result."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from shardtool.cli.output import LOG, print_json, print_text
from shardtool.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.cli.run_options import PrintOptions, RunOptions


ON_ACCEPTED = "shardtool.accepted"  # in a context: what is called once a request is known to make sense


def write_shards(work: Callable[..., Any], how: RunOptions, *, dry: bool) -> None:
    from shardtool.cli.result_text import create_text, plan_text

    run_and_print(work, how, plan_text if dry else create_text, always=dry)


def open_terminal(how: RunOptions) -> closing[Terminal]:
    accepted = click.get_current_context().meta.get(ON_ACCEPTED)
    return closing(Terminal(quiet=how.quiet, verbose=how.verbose, progress=how.progress, accepted=accepted))


def run_and_print(
    work: Callable[..., Any], how: RunOptions, text: Callable[[Any], str], *, always: bool = False
) -> Any:
    """Have a verb do its work before the user's eyes, print what came of it, and return it.

    Args:
        work: Gets the observer, and returns what can be printed.
        how: How it runs.
        text: Makes a text of what came of it.
        always: Print it, however quiet: it is what was asked for.
    """
    with open_terminal(how) as terminal:
        result = work(observer=terminal)
    print_result(how, result.to_json, partial(text, result), always=always)
    return result


def print_result(
    how: PrintOptions, document: Callable[[], object], text: Callable[[], str], *, always: bool = False
) -> None:
    """Print a result, for programs or for people."""
    if LOG.style and isinstance(found := document(), dict):
        LOG.result = found
    if how.as_json:
        print_json(document())
    elif always or not how.quiet:
        print_text(text())
