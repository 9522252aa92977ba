"""The command line: options in, text or JSON out, exit codes. It holds no rule about shards.

Exit codes (docs/cli.md): 0 done, 1 a bug of ours, 2 the request makes no sense, 3 findings (verify),
4 corrupt input, 5 output exists or is locked, 6 samples failed, 7 the machine failed (disk full,
worker killed), 129 / 130 / 143 interrupted by SIGHUP / SIGINT / SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any, NoReturn

import click

from shardtool import __version__
from shardtool.cli.output import say, show_json
from shardtool.errors import Interrupted, OutputFailed, ShardError

if TYPE_CHECKING:
    from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_VERBS = {
    "create": "Pack a folder or manifest of samples into shards.",
    "inspect": "Show what is in a dataset.",
    "verify": "Prove that a dataset is whole, or tell what is wrong with it.",
    "reshard": "Write datasets anew: other sizes, order, format, splits, subsets.",
    "index": "Index the shards of any tool, and export indexes for other tools.",
}


class _Verbs(click.Group):
    """The verbs, each imported when it is used: `--help` costs no more than click."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _VERBS:
            return None
        command: click.Command = getattr(import_module(f"shardtool.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Verbs"):
            formatter.write_dl(list(_VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="shardtool", message="%(prog)s %(version)s")
def cli() -> None:
    """Turn training samples into size-bounded shards, and prove that nothing was lost.

    \b
    Examples:
      shardtool create ./imgs 'out-{000000..}.tar'
      shardtool create ./imgs 'out-<000000..000999>.tar' --shuffle --seed 1
      shardtool create ./imgs 'out-{000000..}.tar' --max-size 500MB --dry-run
      shardtool create table.parquet '{split}-{000000..}.tfrecord' --split train=0.9,val=0.1 --resize 256
      shardtool reshard out.json 'dogs-{000000..}.tar' --where "label == 'dog'" --shuffle --seed 1
      shardtool inspect out.json --html report.html
      shardtool verify out.json --source ./imgs
      shardtool index ./shards --export energon

    Tab completion: put `eval "$(_SHARDTOOL_COMPLETE=bash_source shardtool)"` into ~/.bashrc (zsh_source, fish_source).
    """


def main() -> NoReturn:
    """Run the command line, and end the process with its exit code."""
    for fd in range(3):  # closed ones would be given to the files that we write
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for signum in _SIGNALS:
        if signal.getsignal(signum) != signal.SIG_IGN:  # nohup, or a shell's background job
            signal.signal(signum, _interrupt)
    code = _run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):  # closed, or none: what mattered was flushed by `render.show`
            stream.flush()
    # Nothing is left to do, and taking an interpreter with pyarrow and NumPy apart would take another 50 ms.
    os._exit(code)


def _run(arguments: list[str]) -> int:
    """Return the exit code of a command line."""
    as_json = "--json" in arguments
    try:
        result = cli.main(arguments, prog_name="shardtool", standalone_mode=False)
    except ShardError as error:
        _show(error.to_json() if as_json else str(error))
        return error.exit_code
    except click.ClickException as error:
        _show_usage(error, as_json=as_json)
        return error.exit_code
    except OSError as error:
        if not {"-h", "--help", "--version"} & set(arguments):
            raise  # a bug of ours; what click prints by itself is about stdout
        _show(f"stdout: cannot write: {(error.strerror or '').lower()}")
        return OutputFailed.exit_code
    except Interrupted as interrupt:
        return _interrupted(interrupt.signum, as_json=as_json)
    return result if isinstance(result, int) else 0


def _show(error: str | dict[str, Any]) -> None:
    if isinstance(error, dict):
        try:
            show_json({"error": error})
        except OutputFailed:
            _show(f"{error['where']}: {error['found']}")
    else:
        with suppress(OSError):
            say(f"shardtool: {error}")


def _show_usage(error: click.ClickException, *, as_json: bool) -> None:
    if as_json:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "shardtool"
        found = {"where": where, "found": error.format_message(), "expected": "", "remedy": "See --help."}
        _show({"code": "invalid-request", "exit_code": error.exit_code, **found})
    else:
        with suppress(OSError):
            message = StringIO()
            error.show(file=message)
            say(message.getvalue().removesuffix("\n"))


def _interrupt(signum: int, _frame: FrameType | None) -> None:
    """End the run; what follows is killing workers and removing temporary files, not to be stopped."""
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(signum)


def _interrupted(signum: int, *, as_json: bool) -> int:
    found, code = f"interrupted by {signal.Signals(signum).name}", 128 + signum
    remedy = "What is there is finished files only; --resume goes on from them."
    error = {"code": "interrupted", "exit_code": code, "where": "shardtool", "found": found, "expected": ""}
    _show(error | {"remedy": remedy} if as_json else f"{found}. {remedy}")
    return code
