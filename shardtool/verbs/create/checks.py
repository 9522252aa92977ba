"""Check plans before anything is written, and the content before a dataset file is published."""

from __future__ import annotations

from hashlib import shake_128
from typing import TYPE_CHECKING

from shardtool.dataset import sidecar_schema, sidecar_write
from shardtool.dataset.sidecar_read import max_metadata_bytes
from shardtool.errors import (
    InvalidRequest,
)
from shardtool.fingerprint import format_fingerprint
from shardtool.messages import option_text
from shardtool.names import to_output_name, to_text
from shardtool.plan.shard_task import build_shard_samples
from shardtool.publish.append_target import FinishedAppend
from shardtool.publish.publish_dataset import check_fingerprint
from shardtool.request.create_options import CreateOptions
from shardtool.source.base import check_not_empty
from shardtool.units import format_size
from shardtool.verbs.create import append

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.verbs.create.run import Run, RunOutput


def check_listed(run: Run) -> None:
    """Refuse a source without samples."""
    options = run.options
    if not len(run.entries) and isinstance(options, CreateOptions) and (options.include or options.exclude):
        from shardtool.source.source_checks import refuse_globs

        if not run.listed.skipped:
            folder = to_text(run.entries.root.rstrip(b"/") or run.entries.root)
            refuse_globs(folder, options.include, options.exclude, hidden=options.hidden)
    check_not_empty(run.listed)


def check_shard_sizes(output: RunOutput) -> None:
    """Refuse shards that exceed the maximum file size of the output."""
    max_bytes, sizes = output.destination.folder.largest, output.plan.sizes
    if max_bytes is not None and len(sizes) and int(sizes.max()) > max_bytes:
        where = output.destination.folder.full_path(output.shard_name(int(sizes.argmax())))
        expected = f"at most {format_size(max_bytes)}, the limit of the store"
        remedy = f"Lower {option_text('max_size')}."
        raise InvalidRequest(where, format_size(int(sizes.max())), expected=expected, remedy=remedy)


def check_append(run: Run) -> None:
    """Refuse samples that do not fit the existing dataset."""
    for output in run.outputs:
        if (old_dataset := output.destination.old) is not None:
            from shardtool.publish.export_indexes import export_notes

            append.check_append_schema(old_dataset, output.plan, run.options)
            if not isinstance(output.destination.append, FinishedAppend):
                run.notes.add(*append.append_notes(old_dataset, output.plan, changed=run.transform is not None))
            run.notes.add(*export_notes(output.destination.folder, old_dataset, run.exports))
    destinations = [output.destination for output in (*run.outputs, *run.untouched)]
    if not any(isinstance(destination.append, FinishedAppend) for destination in destinations):
        run.notes.add(
            *append.class_notes(
                [destination.old for destination in destinations if destination.old is not None], run.entries
            )
        )


_ACTS_WITH = (("resize_mode", "resize"), ("max_removed", "resume"))


_ONLY_SCATTER = ("memory", "temp_dir")


def idle_option_notes(run: Run) -> Iterator[str]:
    """Yield which options have no effect on this run."""
    options = run.options
    for name, condition in _ACTS_WITH:
        if options.is_given(name) and not options.first_given(condition):
            required, _, value = condition.partition("=")
            yield f"{option_text(name)} has no effect without {option_text(required, value or None)}"
    if getattr(options, "method", "") == "gather":
        for name in filter(options.is_given, _ONLY_SCATTER):
            yield f"{option_text(name)} has no effect with {option_text('method', 'gather')}"


def check_export_targets(run: Run) -> None:
    """Refuse indexes of other tools that cannot be written once the shards exist."""
    if not run.exports or run.dry:
        return
    from shardtool.publish.export_indexes import check_index_files

    splits = [output.split for output in run.outputs]
    if any(export.has_readme for export in run.exports.values()):
        from shardtool.interop.huggingface import check_huggingface_splits

        check_huggingface_splits(splits)
    if "timm" in run.exports:
        from shardtool.interop.shard_counts import check_timm_splits

        check_timm_splits(splits)
    outputs = [(output.pattern, output.destination.first + output.plan.shards) for output in run.outputs]
    check_index_files(outputs, run.exports, overwrite=run.options.if_exists != "error")


def check_metadata_size(output: RunOutput) -> None:
    """Refuse metadata too large for a sidecar. Only the sidecar with most metadata per shard byte is encoded."""
    plan, metadata, excess = output.plan, output.plan.entries.metadata, []
    if metadata is None or not plan.shards:
        return
    row_bytes = metadata.nbytes / max(1, len(metadata))
    for shard, size in enumerate(plan.sizes.tolist()):
        first, last = plan.span(shard)
        metadata_bytes = (
            metadata.slice(first, last - first).nbytes if plan.order is None else row_bytes * (last - first)
        )
        excess.append(metadata_bytes - max_metadata_bytes(size))
    largest = max(range(plan.shards), key=excess.__getitem__)
    if excess[largest] > 0:
        samples = build_shard_samples(plan, largest)
        paths = samples.paths if plan.entries.source_paths else b""
        crcs = shake_128(b"").digest(2 * len(samples.content.codes))  # random, because checksums do not compress
        index = sidecar_write.written_index(plan.format, samples.content, plan.metadata(largest), crcs, (), paths)
        name, size = to_output_name(output.shard_name(largest)), int(plan.sizes[largest])
        sidecar_write.encode_sidecar(index, sidecar_schema.ShardFacts(name, size, 0, ""))


def check_content_fingerprint(run: Run) -> None:
    """Check that the written content equals that of the source."""
    expected = run.listed.digest
    if expected is not None and not any(output.totals.skipped for output in run.outputs):
        actual = sum(output.totals.digest for output in run.outputs)
        check_fingerprint(run.listed.name, format_fingerprint(actual), format_fingerprint(expected))
