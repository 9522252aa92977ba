"""`create` and `reshard`: pack the samples of a source, or of existing datasets, into shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.messages import flag_text, option_text
from shardtool.pack.pack_dataset import pack_dataset
from shardtool.request.create_options import CreateOptions, ReshardOptions
from shardtool.request.verb_call import accepts_options

if TYPE_CHECKING:
    from shardtool.request.observer import Observer
    from shardtool.request.results import CreateResult
    from shardtool.values import Datasets, OutputNames


@accepts_options(CreateOptions)
def create(source: object, output: OutputNames, options: CreateOptions, observer: Observer) -> CreateResult:
    """Write the samples of `source` into shards, with sidecars and a dataset file.

    With `dry_run`, only return the plan. The planned sizes are exact unless samples are transformed. With
    `plan_only=FILE`, write the plan to FILE, but no shards.

    Args:
        source: A folder, a list of folders, a zip or tar archive, or a manifest (a table with one row per sample or
            file). In folders and archives, files with the same key form one sample. Pass a manifest as a path, `-`
            (standard input), or a table in memory (pandas, pyarrow, or any object with the Arrow C stream interface).
        output: A shard pattern such as `out-{000000..}.tar`, or a list of shard names. `{split}` is replaced by the
            split name.

    Raises:
        InvalidRequest: The request is invalid. Nothing was written.
        OutputExists: The output exists, or another run is writing it. Nothing was changed.
        SampleFailed: A sample cannot be read, or it changed during the run. Another run with `resume=True` reuses
            finished shards.
        OutputFailed: The output cannot be written.
        WorkerDied: A worker process was killed.

    Example:
        ```
        result = shardtool.create("photos", "out-{000000..}.tar", max_size="500MB")
        print(result.samples, result.dataset_file)
        ```
    """
    if not (options.stat or options.dry_run or options.plan_only is not None):
        raise InvalidRequest(option_text("stat"), "a run that writes", expected=flag_text("dry_run"))
    return pack_dataset(source, output, options, observer)


@accepts_options(ReshardOptions)
def reshard(dataset: Datasets, output: OutputNames, options: ReshardOptions, observer: Observer) -> CreateResult:
    """Write the samples of one or more datasets into new shards, with sidecars and a dataset file.

    Payloads are verified with the checksums in the sidecars, and copied without decoding unless a transform changes
    them. If no option selects or changes samples, the content fingerprint stays the same.

    Args:
        dataset: A dataset file, a pattern, a glob, a folder, a list of shards, or a list of these.
        output: A shard pattern or a list of shard names, as for `create`.

    Raises:
        InvalidRequest: The request is invalid. Nothing was written.
        CorruptShard: A dataset is damaged. No damaged data was copied.
        OutputExists: The output exists, or another run is writing it. Nothing was changed.
        OutputFailed: The output or the folder for temporary files cannot be written.
        WorkerDied: A worker process was killed.

    Example:
        ```
        shardtool.reshard("out.json", "shuffled-{000000..}.tar", shuffle=True, seed=1)
        ```
    """
    return pack_dataset(dataset, output, options, observer)
