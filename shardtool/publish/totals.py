"""The totals of published shards, and their dataset file."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import TYPE_CHECKING

from shardtool.dataclass import dataclass
from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
from shardtool.dataset.features import tf_features
from shardtool.dataset.skipped_list import encode_skipped
from shardtool.fingerprint import crc32c, format_fingerprint
from shardtool.names import to_bytes, to_output_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardtool.dataset.sidecar_schema import ShardFacts, ShardTally
    from shardtool.entries.sample_table import FieldValues
    from shardtool.pattern import ShardPattern
    from shardtool.request.run_record import RunRecord
    from shardtool.skipped import Skipped


def build_dataset_file(
    totals: DatasetTotals, pattern: ShardPattern, skipped: Sequence[Skipped], run: RunRecord, shard_format: str = ""
) -> DatasetFile:
    """Return the dataset file of packed shards."""
    shard_format = shard_format or pattern.format
    values, is_tar = totals.values, shard_format == "tar"
    kinds = {**values.numbers, **values.lists}
    fields = {name: totals.fields[name] for name in sorted(totals.fields, key=to_bytes)}
    return DatasetFile(
        name=to_output_name(pattern.base),
        pattern=to_output_name(pattern.text),
        format=shard_format,
        shards=tuple(totals.shards),
        fields=fields,
        field_bytes=totals.field_bytes,
        skipped=len(skipped),
        schema=totals.schema,
        classes=values.classes,
        features={} if is_tar else tf_features(totals.fields, kinds, totals.samples, values.lists),
        run=run,
        fingerprint=format_fingerprint(totals.digest),
        skipped_crc=crc32c(encode_skipped(skipped)) if skipped else None,
        types={name: values.types[name] for name in fields if name in values.types},
    )


@dataclass(slots=True)
class DatasetTotals:
    """The totals of a dataset's published shards.

    Attributes:
        shards: Entries for the dataset file, unsorted until the end of the run.
        fields: The number of samples with each field.
    """

    values: FieldValues
    shards: list[ShardEntry] = field(default_factory=list)
    fields: Counter[str] = field(default_factory=Counter)
    field_bytes: int = 0
    schema: Mapping[str, str] = field(default_factory=dict)
    digest: int = 0
    skipped: list[Skipped] = field(default_factory=list)

    def add(
        self, facts: ShardFacts, sidecar: bytes, tally: ShardTally, digest: int = 0, skipped: Iterable[Skipped] = ()
    ) -> ShardEntry:
        """Add a shard, and return its entry. The caller sets `self.schema`."""
        self.digest += digest
        self.skipped += skipped
        self.shards.append(tally.entry(facts, sidecar))
        self.field_bytes += tally.field_bytes
        self.fields.update(tally.fields)
        return self.shards[-1]

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(shard.samples for shard in self.shards)
