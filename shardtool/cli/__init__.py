"""The command line: entry point, error output and exit codes (docs/errors.md)."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import click

from shardtool.cli.output import LOG, allow_color, print_json, print_message, print_text
from shardtool.cli.signals import SignalHandler
from shardtool.errors import (
    FILE_LIMIT_FIX,
    MEMORY_FIX,
    PROCESS_ERRNOS,
    Bug,
    Interrupted,
    InvalidRequest,
    OutOfMemory,
    OutputFailed,
    PlainError,
    StoreFailed,
    explaining_missing_cwd,
    is_out_of_memory,
    os_error_text,
)
from shardtool.messages import use_cli_names
from shardtool.pandas_guard import block_pandas

_VERB_SUMMARIES = {
    "create": "Pack a folder or table of samples into shards.",
    "inspect": "Show the content of a dataset.",
    "verify": "Check that a dataset is complete and undamaged.",
    "diff": "Compare two datasets, or a dataset and its source.",
    "reshard": "Rewrite datasets: change size, order, format or splits, or select samples.",
    "index": "Create sidecars for shards of any tool, and indexes for other tools.",
    "copy": "Copy and verify datasets; update existing copies.",
    "remove": "Remove samples in place; rewrite only the affected shards.",
    "extract": "Write samples to files: all of them, a selection, or some fields.",
    "doctor": "Test access to a store, a server or a folder, and explain problems.",
    "cache": "Show, check or clear a shard cache.",
    "completion": "Print a script that makes TAB complete commands in bash, zsh or fish.",
    "help": "Show or search the help.",
}


_MIN_ADDRESS_SPACE_BYTES = 300_000_000  # with less address space, OpenBLAS and glibc abort
# Collect garbage rarely, because imports create many objects that are never freed.
_GC_THRESHOLD = 50_000
_RESUME_TEXT = "All files in the output are complete. Run it again with --resume to continue."
_RESUME_TEXTS = {
    "create": _RESUME_TEXT,
    "reshard": _RESUME_TEXT,
    "index": "All files in the output are complete. Run it again to continue.",
    "copy": "All files in the output are complete. Run it again to continue.",
    "remove": "Run the same command again to finish.",
    "extract": "Run the same command again to write the remaining files.",
}


class _VerbGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_VERB_SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _VERB_SUMMARIES:
            return None
        from shardtool.cli.commands import VERBS

        return VERBS[cmd_name]()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name
            remedy = f"Write options after the verb: `shardtool VERB {name}`."
            raise InvalidRequest(name, "no such option before the verb", remedy=remedy) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _VERB_SUMMARIES and args[0][:1] != "-":
            from shardtool.cli.help import suggest_verb

            verb = _find_verb(args)
            advice = f"Write the verb first: `shardtool {verb} {args[0]}`." if verb else "See `shardtool --help`."
            remedy = suggest_verb(args[0], _VERB_SUMMARIES) or advice
            raise InvalidRequest(args[0], "no such verb", remedy=remedy)
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        from shardtool.cli.help import overview_help

        return overview_help(self, ctx, _VERB_SUMMARIES)


def _show_version(context: click.Context, _param: click.Parameter, is_set: bool) -> None:  # noqa: FBT001 - a callback
    if is_set:
        from shardtool.values import __version__

        print_text(f"shardtool {__version__}")
        context.exit()


@click.group(cls=_VerbGroup, subcommand_metavar="VERB ...", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version,
    help="Show the version and exit.",
)  # fmt: skip
@click.option("--no-color", is_flag=True, expose_value=False, help="Print errors and notes without colours.")
def cli() -> None:
    """Pack training samples into shards of limited size, and verify that no sample is lost.

    \b
    Examples:
      shardtool create ./imgs 'out-{000000..}.tar'
      shardtool create ./imgs 'out-<000000..000999>.tar' --shuffle --seed 1
      shardtool create ./imgs 'out-{000000..}.tar' --max-size 500MB --dry-run
      shardtool create table.csv '{split}-{000000..}.tar' --split train=0.9,val=0.1
      shardtool reshard out.json 'dogs-{000000..}.tar' --where "label == 'dog'" --shuffle --seed 1
      shardtool inspect out.json --html report.html
      shardtool verify out.json --source ./imgs
      shardtool diff old.json new.json
      shardtool index ./shards --export energon
      shardtool copy out.json /mnt/backup/out
      shardtool remove out.json --keys-from keys.txt
      shardtool extract out.json ./files --where "label == 'dog'"
      shardtool doctor s3://bucket/train
      shardtool cache status /fast/disk/cache
      shardtool help create urls

    More: shardtool VERB -h (short), shardtool VERB --help (full), shardtool help VERB TOPIC (all options), shardtool
    --version. --no-color, or NO_COLOR=1, turns colours off. For TAB completion, see `shardtool completion -h`.
    """


def main() -> NoReturn:
    """Run the command line, and exit."""
    # Open /dev/null for closed standard streams, so no output file gets descriptor 0, 1 or 2.
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115 - Python sets a closed stdin to None
    # NumPy would otherwise start a linear-algebra thread for each core, which takes 50 ms and memory.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    block_pandas()
    gc.set_threshold(_GC_THRESHOLD)
    if "_SHARDTOOL_COMPLETE" in os.environ:
        import_module("shardtool.cli.completion")
    arguments = sys.argv[1:]
    signals = SignalHandler(lambda signum: _print_error(_describe_interrupt(signum, arguments), arguments))
    signals.install()
    try:
        code = _run(arguments, signals)
    except Interrupted as late:  # a signal arrived after the verb finished
        code = 128 + late.signum
    LOG.end(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):  # ignore errors: results were already flushed
            stream.flush()
    # Skip the interpreter's shutdown, which takes 50 ms if pyarrow and NumPy are loaded.
    os._exit(code)


@use_cli_names()
def _run(arguments: list[str], signals: SignalHandler) -> int:
    LOG.begin("")
    allow_color(allowed="--no-color" not in arguments)
    try:
        if _find_verb(arguments) and not {"-h", "--help"} & set(arguments):
            _check_address_space()
        with explaining_missing_cwd():
            result = cli.main(arguments, prog_name="shardtool", standalone_mode=False, obj=arguments)
        signals.end()
        LOG.end(result if isinstance(result, int) else 0)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        signals.end()
        return _print_usage_error(error, arguments)
    except (Exception, Interrupted) as error:  # noqa: BLE001 - unexpected exceptions are reported as bugs
        signals.end()
        signum = error.signum if isinstance(error, Interrupted) else signals.first
        failure = _describe_error(error, arguments) if signum is None else _describe_interrupt(signum, arguments)
    # Print after the `except` block has released the memory of the failed code.
    return _print_error(failure, arguments)


def _check_address_space() -> None:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _MIN_ADDRESS_SPACE_BYTES:
        found = f"an address space limit of {limit:,} bytes"
        raise OutOfMemory(
            "ulimit -v", found, expected=f"{_MIN_ADDRESS_SPACE_BYTES:,} or more", remedy="Raise the limit."
        )


def _describe_error(error: BaseException, arguments: list[str]) -> dict[str, Any]:
    where = f"shardtool {verb}" if (verb := _find_verb(arguments)) else "shardtool"
    if isinstance(error, PlainError):
        failure = error
    elif is_out_of_memory(error):
        failure = OutOfMemory(where, f"not enough memory, in {_find_function(error)}", remedy=MEMORY_FIX)
    elif isinstance(error, OSError) and {"-h", "--help", "--version"} & set(arguments):
        # the error occurred while click printed the help or the version
        failure = OutputFailed("stdout", f"cannot write: {(error.strerror or '').lower()}")
    elif isinstance(error, OSError) and error.errno in PROCESS_ERRNOS:
        failure = StoreFailed(where, os_error_text(error), remedy=FILE_LIMIT_FIX)
    else:
        failure = Bug.from_exception(where, error)
    described = failure.to_json()
    if isinstance(failure, InvalidRequest) and verb:
        from shardtool.cli.commands import VERBS
        from shardtool.cli.help import restore_typed_names

        described.update(restore_typed_names(described, VERBS[verb](), arguments))
    if isinstance(failure, Bug) and not {"-v", "--verbose"} & set(arguments):
        described.pop("detail", None)
    return described


def _find_function(error: BaseException) -> str:
    name, trace = "the command line", error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if module.startswith("shardtool.") and not module.startswith("shardtool.cli"):
            name = f"{module}.{trace.tb_frame.f_code.co_name}"
        trace = trace.tb_next
    return name


def _find_verb(arguments: list[str]) -> str:
    return next((word for word in arguments if word in _VERB_SUMMARIES), "")


def _print_error(error: dict[str, Any], arguments: list[str]) -> int:
    if "--json" in arguments:
        try:
            print_json({"error": error})
        except OutputFailed:
            _print_error_text(f"{error['where']}: {error['found']}", error["where"])
    if LOG.is_enabled:
        LOG.end(int(error["exit_code"]), error)
    elif "--json" in arguments:
        pass
    elif error["code"] == "interrupted":
        _print_error_text(f"{error['found']}. {error['remedy']}")
    else:
        kept = {name: error.get(name, "") for name in ("expected", "remedy", "detail")}
        _print_error_text(str(PlainError(error["where"], error["found"], **kept)), error["where"])
    return int(error["exit_code"])


def _print_error_text(text: str, location: str = "") -> None:
    with suppress(OSError):
        print_message(text, label="shardtool:", label_color="red", location=location)


def _print_usage_error(error: click.ClickException, arguments: list[str]) -> int:
    from shardtool.cli.help import HelpShown, usage_error

    if not arguments or (isinstance(error, HelpShown) and "--json" not in arguments and not LOG.is_enabled):
        with suppress(OSError):
            print_message(error.format_message())
        return error.exit_code
    return _print_error(usage_error(error, _find_verb(arguments), arguments).to_json(), arguments)


def _describe_interrupt(signum: int, arguments: list[str]) -> dict[str, Any]:
    return {
        "code": "interrupted",
        "exit_code": 128 + signum,
        "where": "shardtool",
        "found": f"interrupted by {signal.Signals(signum).name}",
        "expected": "",
        "remedy": _RESUME_TEXTS.get(_find_verb(arguments), "Run it again."),
    }
