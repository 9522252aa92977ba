"""Options that several verbs share, and the types that turn their text into values."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from shardtool.errors import InvalidRequest
from shardtool.interop.indexes import EXPORTS
from shardtool.request.choices import RANGES, choices
from shardtool.request.options import OutputOptions
from shardtool.storage.places import use_endpoint, use_headers
from shardtool.storage.remote.retry import use_retry_for
from shardtool.values import parse_size
from shardtool.wording import typed_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.values import IfExists

PLACE = click.Path(readable=False)  # shells complete it; what is there, or not, is for the verbs to say
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
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


class WholeNumber(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """A whole number, in the range that `RANGES` has for an option."""

    name = "integer"

    def __init__(self, name: str) -> None:
        self._range = click.IntRange(*RANGES[name])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number that `value` is."""
        if isinstance(value, str) and not _WHOLE.fullmatch(value.strip()):  # int() knows more digits than people type
            self.fail(f"{value!r} is no whole number of at most 30 digits.", param, ctx)
        return self._range.convert(value, param, ctx)  # type: ignore[no-any-return,unused-ignore]


class SectionedCommand(click.Command):
    """A command whose help shows its options in sections: each starts at the option that `SECTIONS` names."""

    SECTIONS: ClassVar[dict[str, str]] = {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, a section at a time."""
        sections: list[tuple[str, list[tuple[str, str]]]] = []
        for param in self.get_params(ctx):
            title = self.SECTIONS.get(param.name or "")
            if title or not sections:
                sections.append((title or "Options", []))
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                sections[-1][1].append(record)
        for title, records in sections:
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def chosen(options: type[Any], name: str, text: str, *, show_default: bool = True) -> Callable[[Command], Command]:
    """Return the option that is one of a few texts: those that its field has, with the field's default.

    Args:
        options: The class of the options.
        name: The name of the field.
        text: The help.
        show_default: Whether the help shows the default.
    """
    default = next(one.default for one in fields(options) if one.name == name)
    return click.option(
        typed_name(name), type=click.Choice(choices(options, name)), default=default, help=text,
        multiple=default == (), show_default=show_default and bool(default),
    )  # fmt: skip


class Readers(click.Choice):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on
    """Readers of shards, with commas between them: `webdataset,dali`."""

    def __init__(self) -> None:
        super().__init__(choices(OutputOptions, "target"))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return their names."""
        return [super(Readers, self).convert(one.strip(), param, ctx) for one in value.split(",")]


def target(text: str) -> Callable[[Command], Command]:
    """Return the option that names readers; it is understood as `--for`, too."""
    return click.option(
        "--target", "--for", "target", type=Readers(), multiple=True, metavar="READERS", help=text,
        callback=lambda _ctx, _param, given: tuple(dict.fromkeys(one for part in given for one in part)),
    )  # fmt: skip


def shards(command: Command) -> Command:
    """Add what says how shards are cut, and in which order."""
    return _add(
        command,
        click.option("--max-size", type=Size(), help="Bytes of a finished shard at most: 500MB, 1GiB. [default: 1GB]"),
        click.option("--max-count", type=WholeNumber("max_count"), metavar="N", help="Samples in a shard at most."),
        click.option(
            "--shards", type=WholeNumber("shards"), metavar="N", help="Exactly so many shards; of each split."
        ),
        click.option("--equal-count", is_flag=True, help="Equally many samples in each shard, give or take one."),
        click.option(
            "--shards-multiple-of",
            type=WholeNumber("shards_multiple_of"),
            default=1,
            metavar="N",
            help="So that ranks x workers divide them.",
        ),
        chosen(OutputOptions, "oversize", "A sample that fits in no shard: an error, a shard of its own, or left out."),
        chosen(OutputOptions, "place", "By order, or by the hash of the key: a new file changes one shard."),
        click.option("--shuffle", is_flag=True, help="One global random order."),
        click.option(
            "--seed",
            type=WholeNumber("seed"),
            default=0,
            show_default=True,
            metavar="N",
            help="Of --shuffle and --split.",
        ),
        click.option(
            "--sort-by", metavar="COLUMN", help="In the order of this column; samples without a value come last."
        ),
        click.option("--descending", is_flag=True, help="From the largest to the smallest."),
    )


def dividing(command: Command) -> Command:
    """Add what divides samples."""
    return _add(
        command,
        click.option(
            "--split", metavar="SHARES", help="train=0.8,val=0.1,test=0.1: a dataset each; put {split} into OUTPUT."
        ),
        click.option("--split-column", metavar="COLUMN", help="The split is what this column says."),
        click.option("--stratify", metavar="COLUMN", help="Each label keeps the shares of --split."),
        click.option("--group-by", metavar="COLUMN", help="All samples with one value stay in one split."),
    )


def selecting(command: Command) -> Command:
    """Add what says which fields and metadata samples have."""
    return _add(
        command,
        click.option(
            "--columns-from", multiple=True, metavar="FIELD",
            help="The top-level values of this JSON field become the samples' metadata; repeatable.",
        ),
        click.option("--select-fields", callback=_names, metavar="FIELDS", help="Only these: jpg,cls."),
        click.option("--drop-fields", callback=_names, metavar="FIELDS", help="All but these."),
        click.option(
            "--rename-field", "rename_fields", multiple=True, callback=_renames, metavar="OLD=NEW",
            help="Another name: JPEG=jpg,jpeg=jpg; repeatable.",
        ),
        click.option(
            "--join", type=PLACE, metavar="TABLE", help="CSV, Parquet ...: its columns become the samples' metadata."
        ),
        click.option("--on", metavar="COLUMN", help="The column of --join that holds keys, or paths of files."),
        click.option(
            "--field", "values", multiple=True, metavar="FIELD=COLUMN",
            help="A field made of a column of metadata, or of a manifest; repeatable.",
        ),
        click.option("--classes", multiple=True, metavar="FIELD", help="Number labels of this --field; repeatable."),
        click.option(
            "--classes-from", type=click.Path(), metavar="FILE",
            help="Number labels as this says: a dataset file, a JSON list of names, or text with a name a line.",
        ),
    )  # fmt: skip


def _names(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _renames(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(pair for text in given for pair in text.split(","))


def running(command: Command) -> Command:
    """Add what says how a run goes about its output."""
    return _add(
        command,
        click.option(
            "--portable", is_flag=True, help="Make names safe for every reader; the sidecar keeps the originals."
        ),
        chosen(
            OutputOptions,
            "on_error",
            "At a sample that cannot be read: stop, or leave it out and list it in NAME.skipped.",
        ),
        click.option(
            "--append", is_flag=True, help="Add new shards to the dataset that is there; nothing of it is rewritten."
        ),
        click.option("--resume", is_flag=True, help="Finish an earlier run; keep what is done and unchanged."),
        click.option(
            "--overwrite",
            is_flag=True,
            help="Replace an earlier dataset, once the new one is complete; with --resume, what must change of it.",
        ),
        click.option(
            "--max-removed",
            metavar="SHARE",
            default="10%",
            show_default=True,
            help="--resume stops where more of the samples are no more in SOURCE.",
        ),
        chosen(
            OutputOptions,
            "trust",
            "--resume knows a finished shard by times and its checksum, or, reading nothing, by sizes.",
        ),
        click.option(
            "--export",
            multiple=True,
            type=click.Choice(list(EXPORTS)),
            help="Write another tool's index, too; repeatable.",
        ),
        click.option(
            "--part",
            metavar="K/N",
            help="Only the shards of part K of N runs side by side (3/64, or slurm: this task of its array).",
        ),
        target("Only notes about these readers: webdataset,dali. [default: webdataset,wids,dali,energon,huggingface]"),
        click.option("--dry-run", is_flag=True, help="Print the plan, to the byte; write nothing."),
        chosen(OutputOptions, "start_method", "How workers start.", show_default=False),
    )


def common(command: Command) -> Command:
    """Add what every verb has."""
    return _add(
        command,
        click.option("--workers", type=WholeNumber("workers"), metavar="N", help="Tasks at once. [default: the cores]"),
        chosen(OutputOptions, "executor", "Where they run: on this machine, or on the nodes of a Ray cluster."),
        click.option("--address", metavar="ADDRESS", help="The cluster's: auto, ray://host:port or host:port."),
        endpoint,
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout."),
        click.option("--quiet", is_flag=True, help="No progress, no summary, no notes."),
        progress,
        click.option("-v", "--verbose", is_flag=True, help="Tell of every shard."),
    )


def progress(command: Command) -> Command:
    """Add what says how progress is shown."""
    return click.option(
        "--progress", type=click.Choice(["auto", "plain"]), default="auto", show_default=True,
        help="A bar where stderr is a terminal; plain: a line every ten seconds, for logs.",
    )(command)  # fmt: skip


def endpoint(command: Command) -> Command:
    """Add what says which server has the buckets, what servers of the web are told, and how long they are asked."""
    return _add(
        command,
        click.option(
            "--endpoint", metavar="URL", expose_value=False, callback=partial(_use, use_endpoint),
            help="The server of s3:// (MinIO, Ceph, R2 ...), gs:// or az://. [default: as the cloud's own tools say]",
        ),
        click.option(
            "--header", metavar="'NAME: VALUE'", multiple=True, expose_value=False, callback=partial(_use, use_headers),
            help="Send this to servers of the web (https://); may be repeated. [default: SHARDTOOL_HTTP_HEADERS]",
        ),
        click.option(
            "--retry-for", metavar="SECONDS", expose_value=False, callback=partial(_use, use_retry_for),
            help="How long a request that fails is made again. [default: SHARDTOOL_RETRY_FOR, or 300]",
        ),
    )  # fmt: skip


def _use(
    use: Callable[[Any], None], _ctx: click.Context, param: click.Parameter, given: str | tuple[str, ...] | None
) -> None:
    if given not in (None, ()):
        try:
            use(given)
        except InvalidRequest as error:
            raise click.BadParameter(f"{error.found}, expected {error.expected}.", param=param) from None


def if_exists(*, append: bool, resume: bool, overwrite: bool) -> IfExists:
    """Return what these options mean for output that is there.

    Raises:
        UsageError: They exclude each other.
    """
    if overwrite and append:
        message = "--append adds to what is there and --overwrite replaces it: choose one."
        raise click.UsageError(message)
    if overwrite and resume:
        return "resume-overwrite"
    if append:
        return "append-resume" if resume else "append"
    return "resume" if resume else "overwrite" if overwrite else "error"


def _add(command: Command, *options: Callable[[Command], Command]) -> Command:
    for one in reversed(options):
        command = one(command)
    return command
