"""Options that only the command line has: printing, progress, logs, job files, servers, and outputs of `inspect`."""

from __future__ import annotations

from typing import Literal

import click

from shardtool.cli.output import LOG
from shardtool.request.base_options import BaseOptions
from shardtool.request.create_options import CreateOptions
from shardtool.request.dataset_options import ExtractOptions, IndexOptions, InspectOptions
from shardtool.request.option_spec import Given, Needs, Texts, option, options_class
from shardtool.storage import remote
from shardtool.storage.remote.retry import set_retry_for
from shardtool.storage.remote.store_options import use_store_options

_ERROR_OPTIONS = {"as_json": "--json", "verbose": "--verbose"}


def _use_endpoint(url: str) -> None:
    remote.store_access.use_endpoint(url)


def _use_anonymous(enabled: bool) -> None:  # noqa: FBT001 - the value of a flag
    if enabled:
        remote.store_access.use_anonymous()


def _use_headers(lines: tuple[str, ...]) -> None:
    remote.network.use_headers(lines)


def _use_config(path: str) -> None:
    from shardtool.cli.config import read_config

    context = click.get_current_context()
    context.default_map = read_config(path, context)
    if isinstance(context.obj, list):  # flags such as `--json` also select the format of errors
        context.obj += [word for name, word in _ERROR_OPTIONS.items() if context.default_map.get(name)]


@options_class
class PrintOptions(BaseOptions):
    """Options of all verbs, for printing and job files.

    Attributes:
        as_json: Print the result as one JSON document on stdout.
        quiet: Print only errors and requested output.
        config: Read options and arguments from this TOML file. Command-line options override it.
        save_config: After checking the options and arguments, write them to this TOML file.
    """

    as_json: bool = option(False, section="output", cli_names="json")
    quiet: bool = option(False, cli_names="quiet/q")
    config: str | None = option(None, section="jobs", form="path", metavar="FILE", apply=_use_config)
    save_config: str | None = option(None, form="path", metavar="FILE")


@options_class
class RunOptions(PrintOptions):
    """Options for progress, logs and servers.

    Attributes:
        progress: Show a progress bar on a terminal (auto), or a line every ten seconds (plain).
        log: Write a line per event to stderr, as text or json, instead of showing progress.
        verbose: Print details, for example a line per shard, or all differences.
        endpoint: Server for s3:// (MinIO, Ceph, R2 ...), gs:// or az://.
        anonymous: Read public buckets without credentials.
        store_option: Set a store option: storage-class=STANDARD_IA, request-payer=requester.
        header: Send this header to web servers (https://).
        retry_for: Retry a failed request for this many seconds.
    """

    progress: Literal["auto", "plain"] = option("auto", section="output")
    log: Literal["text", "json"] | None = option(None, apply=LOG.begin)
    verbose: bool = option(False, cli_names="verbose/v")
    endpoint: str | None = option(
        None,
        metavar="URL",
        default_text="from the settings of the cloud's tools",
        section="machines",
        apply=_use_endpoint,
    )
    anonymous: bool = option(False, apply=_use_anonymous)
    store_option: tuple[str, ...] = option(
        (), metavar="KEY=VALUE", default_text="SHARDTOOL_STORE_OPTIONS", apply=use_store_options
    )
    header: tuple[str, ...] = option(
        (), metavar="'NAME: VALUE'", default_text="SHARDTOOL_HTTP_HEADERS", apply=_use_headers
    )
    retry_for: str | None = option(
        None, metavar="SECONDS", default_text="SHARDTOOL_RETRY_FOR, or 300", apply=set_retry_for
    )


@options_class
class ReportOptions(RunOptions):
    """Options for the report of `verify`.

    Attributes:
        report: Format of the report.
    """

    report: Literal["text", "json", "junit", "github"] = option(
        "text", section="output", former_name="format", common=True
    )


@options_class
class IndexCommandOptions(IndexOptions):
    """Options of `index` on the command line.

    Attributes:
        merge: Merge parts into one dataset. Parts come from runs with `part`, or from several ShardWriter objects.
    """

    export: Texts = option.like(CreateOptions.export, section="indexes", common=True)
    merge: bool = option(
        False,
        common=True,
        conflicts=(
            Given(IndexOptions.output),
            Given(IndexOptions.overwrite),
            Given(IndexOptions.checksum),
            Given(IndexOptions.columns_from),
            Given(IndexOptions.dots),
        ),
    )


@options_class
class InspectViewOptions(InspectOptions):
    """Options of `inspect` on the command line.

    Attributes:
        show: Key of the sample to show, or its number (from 0).
        head: Show the first N samples, one line each.
        keys: Print all keys, one per line.
        extract: Write the fields of samples to this folder, as files KEY.FIELD.
        raw: Write the bytes of this field of one sample to stdout.
        table: Write a table with one row per sample: out.parquet or out.csv.
        html: Write a self-contained HTML report to this file.
        contact_sheet: Write a PNG with thumbnails of samples to this file.
        overwrite: Replace existing files.
        duplicates: List samples with the same content, even if their keys or splits differ.
        read_speed: Read for a few seconds as training does, and print the speed.
        decode: Decode images and other fields during `read_speed`.
    """

    show: tuple[str, ...] = option((), section="samples", former_name="sample", metavar="KEY|N", common=True)
    head: int | None = option(None, range=(1, 10**15), common=True, conflicts=(Given(show),))
    keys: bool = option(False, common=True, conflicts=(Given(show), Given(head)))
    _samples = (Given(show), Given(head), Given(keys))
    table: str | None = option(None, section="pages", form="path", metavar="FILE", common=True, conflicts=_samples)
    _samples_or_table = (*_samples, Given(table))
    html: str | None = option(None, form="path", metavar="FILE", common=True, conflicts=_samples_or_table)
    contact_sheet: str | None = option(None, form="path", metavar="FILE", common=True, conflicts=_samples_or_table)
    _outputs = (*_samples_or_table, Given(html), Given(contact_sheet))
    duplicates: bool = option(False, common=True, conflicts=_outputs)
    read_speed: bool = option(False, common=True, conflicts=(*_outputs, Given(duplicates)))
    decode: bool = option(False, requires=(Needs("nothing is read", Given(read_speed)),))
    where: str | None = option.like(
        ExtractOptions.where,
        section="samples",
        requires=lambda: (
            Needs(
                "no samples are listed",
                Given(InspectViewOptions.head),
                Given(InspectViewOptions.keys),
                Given(InspectViewOptions.extract),
                Given(InspectViewOptions.table),
            ),
        ),
        conflicts=(Given(show),),
    )
    extract: str | None = option(
        None,
        form="path",
        metavar="DIR",
        common=True,
        requires=(Needs("no samples to write", Given(show), Given(head), Given(where)),),
        conflicts=(Given(keys), Given(table), Given(html), Given(contact_sheet), Given(duplicates), Given(read_speed)),
    )
    raw: str | None = option(
        None,
        former_name="field",
        metavar="FIELD",
        common=True,
        requires=(Needs("no sample selected", Given(show)),),
        conflicts=(Given(extract),),
    )
    overwrite: bool = option(
        False,
        section="pages",
        cli_names="overwrite/f",
        common=True,
        requires=(Needs("nothing is written", Given(extract), Given(table), Given(html), Given(contact_sheet)),),
    )

    @property
    def summary(self) -> bool:
        """Whether to print the summary: true if no other output is requested."""
        shows = "show", "head", "keys", "table", "html", "contact_sheet", "read_speed", "extract", "duplicates"
        return not self.first_given(*shows)
