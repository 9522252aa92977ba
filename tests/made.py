"""Build `SampleTable` objects from plain values, without files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shardtool import CreateOptions
from shardtool.entries.sample_table import FieldRows, FieldSpans, FieldValues, SampleTable
from shardtool.entries.strings import PackedStrings
from shardtool.request.observer import Observer
from shardtool.shard_samples import FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardtool.source.base import Listing
    from shardtool.source.manifest.source import ManifestSource

FIELDS = ("cls", "jpg", "json")


def made_entries(samples: Sequence[Sequence[int]], keys: Sequence[bytes] | None = None) -> SampleTable:
    """Return samples without files. The default keys are the sample numbers, such as `00000017`.

    Args:
        samples: For each sample, the payload size of each field in bytes. Field N of a sample is named `FIELDS[N]`.
    """
    return flat_entries(
        keys or [b"%08d" % at for at in range(len(samples))],
        [len(sizes) for sizes in samples],
        FIELDS,
        root=b"/nowhere/",
        code=[code for sizes in samples for code in range(len(sizes))],
        size=[size for sizes in samples for size in sizes],
    )


def flat_entries(keys: Iterable[bytes], counts: Sequence[int], fields: Sequence[str], **values: Any) -> SampleTable:
    """Return samples with these keys.

    Args:
        counts: For each sample, its number of fields.
        fields: The field names. The codes in `SampleTable.rows` are indexes into them.
        values: Other attributes of the table or of its blocks, as for `changed`.
    """
    samples, rows = len(counts), sum(counts)
    never = np.zeros(rows, np.int64)
    entries = SampleTable(
        root=b"",
        keys=PackedStrings.of(keys),
        first_rows=np.cumsum([0, *counts]).astype(np.int64),
        fields=tuple(fields),
        rows=FieldRows(np.zeros(rows, np.uint16), np.full(rows, FILE, np.uint8), never, never, never),
    )
    if "offset" in values:
        entries = replace(entries, spans=FieldSpans((), np.zeros(samples, np.uint32), never, np.full(rows, -1)))
    return changed(entries, **values)


def changed(entries: SampleTable, **values: Any) -> SampleTable:
    """Return a copy with changed attributes: of the `SampleTable`, or of its `rows`, `values` or `spans`."""
    blocks = {}
    if "numbers" in values:
        values["types"] = values.pop("numbers")  # the kinds of numbers are part of `types`
    for name in ("rows", "values", "spans"):
        block = getattr(entries, name)
        own = {one: _like(getattr(block, one), values.pop(one)) for one in [*values] if hasattr(block, one)}
        if own:
            block = block._replace(**own) if isinstance(block, FieldValues) else replace(block, **own)
        blocks[name] = block
    return replace(entries, **blocks, **values)


def _like(old: Any, new: Any) -> Any:
    return np.array(new, old.dtype) if isinstance(old, np.ndarray) and isinstance(new, list) else new


def metadata_of(entries: SampleTable) -> Any:
    """Return the metadata table of samples, a `pyarrow.Table`, and check that it exists."""
    assert entries.metadata is not None
    return entries.metadata


def manifest_options(**given: Any) -> CreateOptions:
    """Return `create` options for a manifest. By default, samples that cannot be packed are skipped.

    `fields` is another name for `field`. The values of `field`, `file`, `bytes` and `url` are lists of pairs (field,
    column). A tuple `meta` contains column names.
    """
    found = {"on_error": "skip", **given}
    if "fields" in found:
        found["field"] = found.pop("fields")
    for name in {"file", "bytes", "url", "field"} & {*found}:
        found[name] = tuple("=".join(pair) for pair in found[name])
    if isinstance(found.get("meta"), tuple):
        found["meta"] = ",".join(found["meta"])
    return CreateOptions(**found)


def list_manifest(source: ManifestSource) -> Listing:
    """List the samples of a manifest. The sizes and times of the files are read in this process, not in workers."""
    return source.select_and_sort(source.list_samples(cast("Any", _Here()), Observer()), lambda: None)


class _Here:
    """A pool that runs its tasks in this process."""

    def map(self, function: Callable[[Any], Any], tasks: Iterable[object]) -> Iterable[tuple[int, Any]]:
        return enumerate(map(function, tasks))
