"""Check a plan before writing, and the content before publishing a dataset file."""

from __future__ import annotations

from hashlib import shake_128
from typing import TYPE_CHECKING

from shardtool.dataset import sidecar_schema, sidecar_write
from shardtool.dataset.sidecar_read import max_metadata_bytes
from shardtool.errors import InvalidRequest
from shardtool.fingerprint import format_fingerprint
from shardtool.messages import option_text
from shardtool.names import source_label, to_output_name, to_text
from shardtool.plan.shard_task import build_shard_samples
from shardtool.publish.publish_dataset import check_fingerprint
from shardtool.request.create_options import CreateOptions, ReshardOptions
from shardtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.pack.run import Listed, Packed, Planned, PlannedOutput


def check_listed(listed: Listed) -> None:
    """Raise an error if the source has no samples, unless an existing dataset stays unchanged."""
    options, entries, skipped = listed.run.options, listed.entries, listed.listing.skipped
    if listed.unchanged_outputs or len(entries):
        return
    filters = f"{option_text('include')}, {option_text('exclude')} and {option_text('hidden')}"
    remedy = f"Check that this is the right folder, and check {filters}."
    if skipped:
        remedy = f"All {len(skipped):,} files were skipped, such as {skipped[0].path or 'the folder itself'}."
    elif isinstance(options, CreateOptions) and (options.include or options.exclude):
        from shardtool.source.source_checks import refuse_globs

        folder = to_text(entries.root.rstrip(b"/") or entries.root)
        refuse_globs(folder, options.include, options.exclude, hidden=options.hidden)
    raise InvalidRequest(source_label(entries.root), "no samples", expected="files such as cat/0001.jpg", remedy=remedy)


def check_shard_sizes(output: PlannedOutput) -> None:
    """Raise an error if a planned shard exceeds the maximum file size of the store."""
    max_bytes, sizes = output.destination.folder.max_file_bytes, output.plan.sizes
    if max_bytes is not None and len(sizes) and int(sizes.max()) > max_bytes:
        where = output.destination.folder.full_path(output.shard_name(int(sizes.argmax())))
        expected = f"at most {format_size(max_bytes)}, the limit of the store"
        remedy = f"Lower {option_text('max_size')}."
        raise InvalidRequest(where, format_size(int(sizes.max())), expected=expected, remedy=remedy)


_REQUIRED_OPTION = {"resize_mode": "resize", "max_removed": "resume"}
_SCATTER_OPTIONS = ("memory", "temp_dir")


def unused_option_notes(options: CreateOptions | ReshardOptions) -> Iterator[str]:
    """Yield notes about options that have no effect on this run."""
    for name, required in _REQUIRED_OPTION.items():
        if options.is_given(name) and not options.is_given(required):
            yield f"{option_text(name)} has no effect without {option_text(required)}"
    if getattr(options, "method", "") == "gather":
        for name in filter(options.is_given, _SCATTER_OPTIONS):
            yield f"{option_text(name)} has no effect with {option_text('method', 'gather')}"


def check_export_targets(planned: Planned) -> None:
    """Raise an error if the index files for `--export` cannot be written."""
    run = planned.run
    if not run.exports or run.dry:
        return
    from shardtool.publish.export_indexes import check_index_files

    splits = [output.split for output in planned.outputs]
    if any(export.has_readme for export in run.exports.values()):
        from shardtool.interop.huggingface import check_huggingface_splits

        check_huggingface_splits(splits)
    if "timm" in run.exports:
        from shardtool.interop.index_formats import check_timm_splits

        check_timm_splits(splits)
    outputs = [(output.pattern, output.destination.first + output.plan.shards) for output in planned.outputs]
    check_index_files(outputs, run.exports, overwrite=run.options.if_exists != "error")


def check_metadata_size(output: PlannedOutput) -> None:
    """Raise an error if the metadata of a shard is too large for its sidecar."""
    plan, metadata = output.plan, output.plan.entries.metadata
    if metadata is None or not plan.shards:
        return
    row_bytes = metadata.nbytes / max(1, len(metadata))
    excess_bytes = []
    for shard, size in enumerate(plan.sizes.tolist()):
        first, last = plan.span(shard)
        count = last - first
        metadata_bytes = metadata.slice(first, count).nbytes if plan.order is None else row_bytes * count
        excess_bytes.append(metadata_bytes - max_metadata_bytes(size))
    largest = max(range(plan.shards), key=excess_bytes.__getitem__)
    if excess_bytes[largest] > 0:
        samples = build_shard_samples(plan, largest)
        paths = samples.paths if plan.entries.source_paths else b""
        # The checksums are not known yet, so use pseudorandom bytes, which compress as badly as checksums.
        crcs = shake_128(b"").digest(len(samples.content.codes) // 2 * 4)
        index = sidecar_write.written_index(plan.format, samples.content, plan.metadata(largest), crcs, (), paths)
        name, size = to_output_name(output.shard_name(largest)), int(plan.sizes[largest])
        sidecar_write.encode_sidecar(index, sidecar_schema.ShardFacts(name, size, 0, ""))


def check_content_fingerprint(packed: Packed) -> None:
    """If the source's fingerprint is known, raise an error unless the written samples match it."""
    listing, totals = packed.planned.listed.listing, [output.totals for output in packed.outputs]
    if listing.digest is not None and not any(output_totals.skipped for output_totals in totals):
        actual = sum(output_totals.digest for output_totals in totals)
        check_fingerprint(listing.name, format_fingerprint(actual), format_fingerprint(listing.digest))
