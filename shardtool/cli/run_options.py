"""Options of all verbs: output, progress, logs, job files and servers."""

from __future__ import annotations

from typing import Literal

import click

from shardtool.cli.output import LOG
from shardtool.request.base_options import BaseOptions
from shardtool.request.option_spec import (
    option,
    options_class,
)
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
    if isinstance(context.obj, list):  # the typed words, which select the form of errors
        context.obj += [word for name, word in _ERROR_OPTIONS.items() if context.default_map.get(name)]


@options_class
class PrintOptions(BaseOptions):
    """Options for printing, and job files."""

    as_json: bool = option(False, "Print the result as one JSON document on stdout.", section="output", typed="json")
    quiet: bool = option(False, "Print only errors and requested output.", typed="quiet/q")
    config: str | None = option(
        None, "Read options and arguments from this TOML file; typed options override it.", section="jobs", form="path",
        metavar="FILE", use=_use_config,
    )  # fmt: skip
    save_config: str | None = option(
        None, "Write the options and arguments to this TOML file once they are valid.", form="path",
        metavar="FILE",
    )  # fmt: skip


@options_class
class RunOptions(PrintOptions):
    """Options for progress, logs and servers."""

    progress: Literal["auto", "plain"] = option(
        "auto",
        "Show a progress bar on a terminal (auto), or a line every ten seconds (plain).",
        section="output",
    )
    log: Literal["text", "json"] | None = option(
        None, "Write a line per event to stderr instead of progress, as text or json.",
        metavar="CHOICE", use=LOG.begin,
    )  # fmt: skip
    verbose: bool = option(False, "Print a line for every shard.", typed="verbose/v")
    endpoint: str | None = option(
        None, "Server for s3:// (MinIO, Ceph, R2 ...), gs:// or az://.", metavar="URL",
        shown="from the settings of the cloud's tools", section="machines", use=_use_endpoint,
    )  # fmt: skip
    anonymous: bool = option(False, "Read public buckets without credentials.", use=_use_anonymous)
    store_option: tuple[str, ...] = option(
        (), "Set a store option: storage-class=STANDARD_IA, request-payer=requester.",
        metavar="KEY=VALUE", shown="SHARDTOOL_STORE_OPTIONS", use=use_store_options,
    )  # fmt: skip
    header: tuple[str, ...] = option(
        (), "Send this header to web servers (https://).", metavar="'NAME: VALUE'",
        shown="SHARDTOOL_HTTP_HEADERS", use=_use_headers,
    )  # fmt: skip
    retry_for: str | None = option(
        None, "Retry a failed request for this many seconds.", metavar="SECONDS",
        shown="SHARDTOOL_RETRY_FOR, or 300", use=set_retry_for,
    )  # fmt: skip
