"""`reshard`: datasets become another one, without decoding a sample. The library twin of `shardtool reshard`.

It is `create` with shards as the source: the same planner, packers and publisher. What is its own is how samples
are chosen and changed between the listing and the plan, and how a global shuffle reads its source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.errors import current_folder
from shardtool.pack.run import plan_dataset, write_dataset
from shardtool.request.python_types import given_options
from shardtool.request.reshard_options import ReshardOptions

if TYPE_CHECKING:
    from shardtool.pack.request import OutputNames
    from shardtool.request.observer import Observer
    from shardtool.request.results import CreateResult, DryRun
    from shardtool.values import Datasets


@current_folder()
def reshard(
    datasets: Datasets, output: OutputNames, options: ReshardOptions | None = None, *, observer: Observer | None = None
) -> CreateResult:
    """Write the samples of one or several datasets into other shards, with sidecars and a dataset file.

    Bytes are moved and checked, never decoded: where an index has a payload's checksum, a payload with another one
    ends the run. Where all samples stay as they are, the fingerprint of what was written must be that of the source.

    Args:
        datasets: A dataset, or a list of them: each a dataset file, a pattern, a glob, a folder, or a list of shards.
        output: A shard pattern such as `out-{000000..}.tar`, or the shards' names; with `{split}` in it for splits.
        options: See `ReshardOptions`.
        observer: Gets the progress, and what the user should know.

    Raises:
        InvalidRequest: The request makes no sense; nothing was written.
        CorruptShard: A dataset is damaged, as far as it was read; nothing damaged was copied.
        OutputExists: The output is there already, or another run is writing it; nothing was touched.
        OutputFailed: The output, or the folder of temporary files, cannot be written.
        WorkerDied: A worker was killed.
    """
    return write_dataset(datasets, output, given_options(options, ReshardOptions), observer)


@current_folder()
def reshard_dry_run(
    datasets: Datasets, output: OutputNames, options: ReshardOptions | None = None, *, observer: Observer | None = None
) -> DryRun:
    """Return what `reshard` would write, to the byte; write nothing.

    Raises:
        InvalidRequest: The request makes no sense.
        CorruptShard: A dataset is damaged, as far as it was read.
    """
    return plan_dataset(datasets, output, given_options(options, ReshardOptions), observer)
