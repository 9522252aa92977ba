"""A manifest as a source: a table with a row for each sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.source.base import TASKS, Listing, Source, check_skipped
from shardtool.source.manifest.manifest import Manifest
from shardtool.source.manifest.objects import look_at_objects
from shardtool.source.manifest.options import manifest_options
from shardtool.source.manifest.stat import stat_listed
from shardtool.wording import option

if TYPE_CHECKING:
    import pyarrow as pa

    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Observer
    from shardtool.request.options import CreateOptions
    from shardtool.source.base import Writable


class ManifestSource(Source):
    """A table with a row per sample."""

    def __init__(self, source: object, options: CreateOptions) -> None:
        self._manifest = Manifest(source, manifest_options(options))
        self._options = options

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """Choose rows and columns, and look at the files in the workers."""
        manifest, options = self._manifest, self._options
        if options.where is not None:
            from shardtool.select.query import matching

            manifest.keep(matching(manifest.table, options.where))
        manifest.check()
        found = {}
        look = look_at_objects if manifest.is_remote else stat_listed
        for number, part in pool.map(look, manifest.tasks(TASKS)):
            found[number] = part
            observer.listed(len(part))
        entries, skipped = manifest.entries([found[number] for number in sorted(found)])
        check_skipped(manifest.name, skipped, options.on_error, f"leave their rows out with {option('where')}")
        return Listing(entries, skipped, manifest.name, tuple(manifest.notes))

    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:  # noqa: ARG002 - the table has more columns than samples
        """Return a column of the manifest, for the samples that are left."""
        return self._manifest.column(name)

    def write_binary(self, file: Writable) -> None:
        """Write the payload of all SPAN rows."""
        self._manifest.write_binary(file)
