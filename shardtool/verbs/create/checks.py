"""Check plans before a byte is written, and the content before a dataset file is published."""

from __future__ import annotations

from hashlib import shake_128
from typing import TYPE_CHECKING

from shardtool.dataset import sidecar_schema, sidecar_write
from shardtool.dataset.sidecar_read import max_metadata_bytes
from shardtool.errors import (
    InvalidRequest,
)
from shardtool.fingerprint import format_fingerprint
from shardtool.interop.huggingface import check_huggingface_splits
from shardtool.interop.shard_counts import check_timm_splits
from shardtool.messages import option_text
from shardtool.names import to_output_name, to_text
from shardtool.plan.shard_task import build_shard_samples
from shardtool.publish.append_target import FinishedAppend
from shardtool.publish.publish_dataset import check_fingerprint
from shardtool.request.create_options import CreateOptions
from shardtool.source.base import check_not_empty
from shardtool.units import format_size
from shardtool.verbs.create import append
from shardtool.verbs.create.run import Run, RunOutput

if TYPE_CHECKING:
    from collections.abc import Iterator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.verbs.create.run import Run, RunOutput


def check_listed(run: Run) -> None:
    """Refuse a source without samples.

    Raises:
        InvalidRequest: It has none.
    """
    options = run.options
    if not len(run.entries) and isinstance(options, CreateOptions) and (options.include or options.exclude):
        from shardtool.source.unmatched import refuse_globs

        if not run.listed.skipped:
            folder = to_text(run.entries.root.rstrip(b"/") or run.entries.root)
            refuse_globs(folder, options.include, options.exclude, hidden=options.hidden)
    check_not_empty(run.listed)


def check_shard_sizes(output: RunOutput) -> None:
    """Refuse shards that are larger than a file may be where they go.

    Raises:
        InvalidRequest: One is.
    """
    most, sizes = output.destination.folder.largest, output.plan.sizes
    if most is not None and len(sizes) and int(sizes.max()) > most:
        where = output.destination.folder.full_path(output.shard_name(int(sizes.argmax())))
        expected = f"at most {format_size(most)}, as one request of a store takes"
        remedy = f"Lower {option_text('max_size')}."
        raise InvalidRequest(where, format_size(int(sizes.max())), expected=expected, remedy=remedy)


def check_append(run: Run) -> None:
    """Refuse samples that do not go with those that are there."""
    from shardtool.publish.export_indexes import export_notes

    for output in run.outputs:
        if (old := output.destination.old) is not None:
            append.check_append_schema(old, output.plan, run.options)
            if not isinstance(output.destination.append, FinishedAppend):
                run.notes.add(*append.append_notes(old, output.plan, changed=run.transform is not None))
            run.notes.add(*export_notes(output.destination.folder, old, run.exports))
    there = [one.destination for one in (*run.outputs, *run.untouched)]
    if not any(isinstance(one.append, FinishedAppend) for one in there):
        run.notes.add(*append.class_notes([one.old for one in there if one.old is not None], run.entries))


# Options that act only together with others. Unlike those with `needs`, they were accepted alone before, and dataset
# files record some of them.
_ACTS_WITH = (("resize_mode", "resize"), ("max_removed", "if_exists=resume"))


_ONLY_SCATTER = ("memory", "temp_dir")


def idle_option_notes(run: Run) -> Iterator[str]:
    """Yield which options have no effect on this run."""
    options = run.options
    for name, other in _ACTS_WITH:
        if options.is_given(name) and not options.first_given(other):
            needed, _, value = other.partition("=")
            yield f"{option_text(name)} has no effect without {option_text(needed, value or None)}"
    if getattr(options, "method", "") == "gather":
        for name in filter(options.is_given, _ONLY_SCATTER):
            yield f"{option_text(name)} has no effect with {option_text('method', 'gather')}"


def check_export_targets(run: Run) -> None:
    """Refuse indexes of other tools that could not be written once the shards are there."""
    if not run.exports or run.dry:
        return
    from shardtool.publish.export_indexes import check_index_files

    splits = [output.split for output in run.outputs]
    if any(export.readme for export in run.exports.values()):
        check_huggingface_splits(splits)
    if "timm" in run.exports:
        check_timm_splits(splits)
    outputs = [(output.pattern, output.destination.first + output.plan.shards) for output in run.outputs]
    check_index_files(outputs, run.exports, overwrite=run.options.if_exists != "error")


def check_metadata_size(output: RunOutput) -> None:
    """Refuse metadata that no reader takes, if that shows of the shard that has the most of it for its size.

    That one's sidecar is made, with other checksums. Whatever this does not see, is refused when it is written.
    """
    plan, metadata, excess = output.plan, output.plan.entries.metadata, []
    if metadata is None or not plan.shards:
        return
    a_row = metadata.nbytes / max(1, len(metadata))
    for shard, size in enumerate(plan.sizes.tolist()):
        first, last = plan.span(shard)
        taken = metadata.slice(first, last - first).nbytes if plan.order is None else a_row * (last - first)
        excess.append(taken - max_metadata_bytes(size))
    worst = max(range(plan.shards), key=excess.__getitem__)
    if excess[worst] > 0:
        samples = build_shard_samples(plan, worst)
        paths = samples.paths if plan.entries.source_paths else b""
        crcs = shake_128(b"").digest(2 * len(samples.content.codes))  # as hard to compress as others
        index = sidecar_write.written_index(plan.format, samples.content, plan.metadata(worst), crcs, (), paths)
        name, size = to_output_name(output.shard_name(worst)), int(plan.sizes[worst])
        sidecar_write.encode_sidecar(index, sidecar_schema.ShardFacts(name, size, 0, ""))


def check_content_fingerprint(run: Run) -> None:
    """See, before a dataset file is published, that all content is that of the source, if its digest is known.

    Raises:
        CorruptShard: It is not.
    """
    wanted = run.listed.digest
    if wanted is not None and not any(output.totals.skipped for output in run.outputs):
        found = sum(output.totals.digest for output in run.outputs)
        check_fingerprint(run.listed.name, format_fingerprint(found), format_fingerprint(wanted))
