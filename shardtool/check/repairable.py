"""What of a damaged dataset can be made again: decided from findings and the dataset file; nothing is touched."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool.check.recorded_run import recorded_run
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.pattern import DATASET_SUFFIX, parse_pattern
from shardtool.request.options import OF_WORKERS, CreateOptions
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.dataset.find import Found
    from shardtool.request.options import VerifyOptions
    from shardtool.values import OnError

OF_SIDECARS = frozenset(
    {"sidecar-missing", "sidecar-size", "sidecar-checksum", "sidecar-damaged", "sidecar-stale", "index-differs"}
)
_UNREAD, _CHANGED = {"shard-missing", "shard-unreadable"}, {"shard-size", "shard-checksum", "payload-checksum"}
OF_SHARDS = frozenset({*_UNREAD, *_CHANGED, "shard-damaged", "padding-not-zero"})
OF_DATASET_FILE = frozenset({"dataset-file-missing", "dataset-file-damaged"})
OF_ALL = frozenset({"dataset-incomplete", "numbering-gap", "sidecar-extra", "shard-extra"})


def why_not_again(file: DatasetFile) -> str:
    """Return why shards cannot be made again here, and what to do instead; empty where they can, with the source."""
    verb = file.made.verb
    if file.appends:
        overwrite, append = option("if_exists", "overwrite"), option("if_exists", "append")
        return (
            "the shards of a dataset that samples were appended to: no one command makes them again. Get the files "
            f"from a copy, or make the dataset anew: the first command with {overwrite}, then each {append}"
        )
    if verb == "index":
        return "shards that another tool made: get them again"
    if verb != "create" or file.made.split:
        which = "of a split" if verb == "create" else f"made by {printable(verb)[:80]}"
        return f"shards {which}: run the command that made them again, with {option('if_exists', 'resume')}"
    if file.made.options.get("urls"):
        again = option("if_exists", "resume")
        return f"shards of the files of URLs, which may be others by now: run the command that made them, with {again}"
    if table := file.made.options.get("join"):
        which = f"made with {option('join')} {printable(str(table))[:80]}"
        return f"shards {which}: run the command that made them again, with {option('if_exists', 'resume')}"
    return ""


def wrong_names(file: DatasetFile, codes: Mapping[str, Collection[str]]) -> list[str]:
    """Return the files that are to be made again, by the codes that were found of each file."""
    names = []
    for one in file.shards:
        if OF_SHARDS.intersection(codes.get(one.name, ())):
            names.append(one.name)
        elif OF_SIDECARS.intersection(codes.get(one.sidecar, ())):
            names.append(one.sidecar)
    return names


def options_again(file: DatasetFile, asked: VerifyOptions) -> CreateOptions:
    """Return the options to run `create` again with: code is the user's, never what is recorded.

    Raises:
        InvalidRequest: The dataset was made with options that the user is to give, and did not.
    """
    run, given = recorded_run(file, asked), asked.map
    if not isinstance(run.options, CreateOptions):
        raise TypeError(run.verb)  # other verbs are not run again
    if run.map and given is None:
        found = f"samples made by {run.map}, which is never run because a file names it"
        wanted = f"{option('map')}, if that code is yours"
        raise InvalidRequest(option("source"), found, expected=wanted, remedy="Nothing was touched.")
    if given is not None and given != run.map:
        expected = f"{run.map}, as recorded" if run.map else "none, as recorded"
        raise InvalidRequest(option("map"), str(given), expected=expected, remedy="Nothing was touched.")
    on_error: OnError = "skip" if file.skipped else "stop"
    how = {name: getattr(asked, name) for name in ("start_method", *OF_WORKERS)}
    return replace(run.options, map=given, if_exists="resume", on_error=on_error, **how)


def output_again(file: DatasetFile, found: Found, codes: Collection[str]) -> list[str] | str:
    """Return where `create` is to write: to the names that the dataset file lists, in its own folder.

    Raises:
        InvalidRequest: It would write or remove other files than those.
    """
    if extra := {"shard-extra", "sidecar-extra"}.intersection(codes):
        problem = f"files that the dataset file does not list ({listing(sorted(extra))})"
        expected = "none, for they would be removed"
        raise InvalidRequest(option("repair"), problem, expected=expected, remedy="Move them away first.")
    output: list[str] | str = os.path.join(found.folder, file.pattern)
    if "{" not in file.pattern:
        output = [os.path.join(found.folder, one.name) for one in file.shards]
    base, own = parse_pattern(output).base, os.path.basename(found.dataset_file or "").removesuffix(DATASET_SUFFIX)
    if {base, file.name} != {own}:
        problem = f"a dataset file called {own}, of a dataset called {file.name}"
        remedy = "Give the dataset file its own name again."
        raise InvalidRequest(option("repair"), problem, expected=f"{base}, as its shards are", remedy=remedy)
    return output
