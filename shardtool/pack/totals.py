"""What the packed shards of a plan hold together, and the dataset file that says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import DatasetFile
from shardtool.dataset.feature import Feature, features_of
from shardtool.errors import InvalidRequest, memory_for
from shardtool.fingerprint import crc32c, show_fingerprint
from shardtool.publish.append import joined
from shardtool.publish.old_dataset import Done
from shardtool.publish.skipped_file import encode_skipped
from shardtool.values import output_text, to_bytes
from shardtool.wording import either, option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.dataset.dataset_file import ShardEntry
    from shardtool.entries.entries import FieldValues
    from shardtool.interop.portability import Misread
    from shardtool.publish.destination import Destination
    from shardtool.publish.publisher import Publisher
    from shardtool.request.run_record import RunRecord
    from shardtool.skipped import Skipped
    from shardtool.values import Number


@dataclass(frozen=True, slots=True)
class Packed:
    """The shards of a run, all of them published.

    Attributes:
        values: What is known of the fields' values.
        shards: What the dataset file says of each.
        fields: How many samples have each field.
        field_bytes: Bytes of all payloads.
        schema: The columns of the sidecars, and their types.
        digest: The content fingerprint.
        skipped: What was left out, in the order of its list.
        kept: How many shards an earlier run had finished.
        dropped: How many samples the user's function dropped.
        misread: What readers would get wrong about the keys that it made.
    """

    values: FieldValues
    shards: tuple[ShardEntry, ...]
    fields: Mapping[str, int]
    field_bytes: int
    schema: Mapping[str, str]
    digest: int
    skipped: tuple[Skipped, ...]
    kept: int
    dropped: int
    misread: tuple[Misread, ...]

    def features(self) -> dict[str, Feature]:
        """Return the features of TFRecords."""
        samples, values = sum(shard.samples for shard in self.shards), self.values
        return features_of(self.fields, {**values.numbers, **values.lists}, samples, values.lists)

    def numbers(self) -> dict[str, Number]:
        """Return the fields of tar shards that are numbers as text, and their kinds."""
        numbers = self.values.numbers
        return {name: numbers[name] for name in sorted(numbers, key=to_bytes) if name in self.fields}


@memory_for("the dataset file")
def publish_dataset(packed: Packed, publisher: Publisher, made: RunRecord) -> DatasetFile:
    """Publish what was skipped and the dataset file; return what it says.

    Args:
        packed: The shards.
        publisher: What published them.
        made: How the dataset was made, or what was appended.
    """
    output, pattern = publisher.destination, publisher.pattern
    last = output.first + len(packed.shards)
    if isinstance(output.append, Done):
        check_same(output.append, last, None, output)
        return output.append.old
    skipped = publisher.all_skipped(packed.skipped)
    dataset = dataset_of(packed, output, skipped, made)
    if output.old is not None:
        dataset = joined(output.old, dataset)
    publisher.check_there(packed.shards)
    publisher.finish([pattern.shard(shard) for shard in range(output.first, last)], dataset.encode(), skipped)
    return dataset


def dataset_of(packed: Packed, output: Destination, skipped: Sequence[Skipped], made: RunRecord) -> DatasetFile:
    """Return what the dataset file says of packed shards, and of all that is left out."""
    pattern = output.pattern
    return DatasetFile(
        name=output_text(pattern.base),
        pattern=output_text(pattern.text),
        format=pattern.format,
        shards=packed.shards,
        fields={name: packed.fields[name] for name in sorted(packed.fields, key=to_bytes)},
        field_bytes=packed.field_bytes,
        skipped=len(skipped),
        schema=packed.schema,
        classes=packed.values.classes,
        features=packed.features() if pattern.format == "tfrecord" else {},
        made=made,
        fingerprint=show_fingerprint(packed.digest),
        skipped_crc=crc32c(encode_skipped(skipped)) if skipped else None,
        numbers=packed.numbers() if pattern.format == "tar" else {},
    )


def check_same(done: Done, number: int, shard: ShardEntry | None, output: Destination) -> None:
    """Refuse an append that the dataset has with other content.

    Args:
        done: The append, as the dataset has it.
        number: The number of a shard.
        shard: What this run says of it; None if there is none of that number.
        output: The dataset.

    Raises:
        InvalidRequest: The dataset says something else.
    """
    if [*done.old.shards[number : number + 1]] != ([] if shard is None else [shard]):
        found = "the dataset has these samples already, with other content"
        remedy = either(
            f"Give the new samples other keys, with {option('if_exists', 'append')}.",
            "Give the new samples other keys, and leave --resume out.",
        )
        raise InvalidRequest(output.pattern.text, found, remedy=remedy)
