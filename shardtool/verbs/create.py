"""`create`: a folder or a manifest becomes a dataset. The library twin of `shardtool create`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, current_folder
from shardtool.pack.run import plan_dataset, write_dataset
from shardtool.request.options import CreateOptions
from shardtool.request.python_types import given_options
from shardtool.wording import either, option

if TYPE_CHECKING:
    from shardtool.pack.request import OutputNames
    from shardtool.request.observer import Observer
    from shardtool.request.results import CreateResult, DryRun


@current_folder()
def create(
    source: object, output: OutputNames, options: CreateOptions | None = None, *, observer: Observer | None = None
) -> CreateResult:
    """Write the samples of `source` into shards, with sidecars and a dataset file.

    Args:
        source: A folder tree, where files that share a key are one sample, or a list of several, whose files share
            keys; a zip or tar of files; or a manifest, a row per sample or file: a file, `-` for standard input, or a
            table in memory (pandas, pyarrow, anything with the Arrow C stream interface).
        output: A shard pattern such as `out-{000000..}.tar`, or the shards' names; with `{split}` in it for splits.
        options: See `CreateOptions`.
        observer: Gets the progress, and what the user should know.

    Raises:
        InvalidRequest: The request makes no sense; nothing was written.
        OutputExists: The output is there already, or another run is writing it; nothing was touched.
        SampleFailed: Samples cannot be read or changed; finished shards are kept for `if_exists="resume"`.
        OutputFailed: The output cannot be written.
        WorkerDied: A worker was killed.
    """
    options = given_options(options, CreateOptions)
    if not options.stat:
        raise InvalidRequest(
            option("stat"),
            "a run that writes",
            expected=either("`dry_run`, which writes nothing", "--dry-run beside it"),
        )
    if options.plan_only is not None:
        raise InvalidRequest(
            option("plan_only"), "a run that writes shards", expected="`dry_run`, which writes the plan"
        )
    return write_dataset(source, output, options, observer)


@current_folder()
def dry_run(
    source: object, output: OutputNames, options: CreateOptions | None = None, *, observer: Observer | None = None
) -> DryRun:
    """Return what `create` would write, to the byte unless samples are changed on the way; write no shard.

    With `plan_only`, the file of the plan is written.

    Raises:
        InvalidRequest: The request makes no sense.
        SampleFailed: The source has files that cannot be packed.
        OutputExists: There is a file where the plan is to go.
        OutputFailed: The plan cannot be written.
    """
    return plan_dataset(source, output, given_options(options, CreateOptions), observer)
