"""Run a verb with progress on the terminal, and print its result."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from shardtool.cli.output import LOG, print_json, print_text
from shardtool.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.cli.command_options import PrintOptions, RunOptions


ON_VALID_REQUEST = "shardtool.on_valid_request"  # context key of a function to call when the request is valid


def open_progress_display(options: RunOptions) -> closing[Terminal]:
    """Return a context manager with an observer that shows progress."""
    callback = click.get_current_context().meta.get(ON_VALID_REQUEST)
    return closing(
        Terminal(quiet=options.quiet, verbose=options.verbose, progress=options.progress, on_valid_request=callback)
    )


def run_and_print(
    work: Callable[..., Any], run_options: RunOptions, text: Callable[[Any], str], *, always: bool = False
) -> Any:
    """Run a verb with progress, and print and return its result. With `always`, ignore `--quiet`."""
    with open_progress_display(run_options) as terminal:
        result = work(observer=terminal)
    print_result(run_options, result.to_json, partial(text, result), always=always)
    return result


def print_result(
    print_options: PrintOptions, document: Callable[[], object], text: Callable[[], str], *, always: bool = False
) -> None:
    """Print a result as JSON or as text. With `always`, ignore `--quiet`."""
    if LOG.is_enabled and isinstance(result := document(), dict):
        LOG.result = result
    if print_options.as_json:
        print_json(document())
    elif always or not print_options.quiet:
        print_text(text())
